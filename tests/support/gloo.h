// gloo, as LibTorch has it built in, for tests of the c10d adapter.
#pragma once

#include <fsdp/comm.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace fsdp::testing {

bool gloo_available();
c10::intrusive_ptr<::c10d::Backend> make_gloo(const c10::intrusive_ptr<::c10d::Store>& store, int rank,
                                              int size);

}  // namespace fsdp::testing
