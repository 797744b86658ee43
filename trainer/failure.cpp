#include "trainer/failure.h"

#include <c10/util/Exception.h>
#include <fsdp/fsdp.h>
#include <fsdp/train.h>

#include "app/exit_codes.h"
#include "trainer/data/error.h"
#include "trainer/same_run.h"

namespace fsdp::train {

namespace {

template <typename Error>
bool is(const std::exception& error) {
  return dynamic_cast<const Error*>(&error) != nullptr;
}

}  // namespace

Failure describe_failure(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error))
    return {torch->what_without_backtrace(), app::kFailed};
  if (const auto* comm = dynamic_cast<const CommError*>(&error))
    return {error.what(), app::kPeerLost, comm->details().culprit};
  if (const auto* other = dynamic_cast<const OtherRankDiffers*>(&error))
    return {error.what(), app::kUsage, other->rank()};
  const int code = is<data::DataError>(error)   ? app::kUsage
                   : is<CheckpointError>(error) ? app::kCheckpoint
                   : is<RendezvousError>(error) ? app::kRendezvous
                   : is<NumericError>(error)    ? app::kNumeric
                   : is<IoError>(error)         ? app::kStorage
                   : is<Error>(error)           ? app::kFailed
                                                : app::kDefect;
  return {error.what(), code};
}

}  // namespace fsdp::train
