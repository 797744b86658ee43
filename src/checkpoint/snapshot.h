// Snapshot: the data of a run that one rank saves.
#pragma once

#include <fsdp/checkpoint.h>

#include <map>
#include <string>
#include <vector>

#include "checkpoint/held.h"
#include "checkpoint/tensor_files.h"
#include "files/json.h"
#include "runtime/model.h"

namespace fsdp::detail {

struct Snapshot {
  int64_t step = 0;
  std::vector<Held> model;  // parameters and buffers
  std::vector<Held> state;  // moments, generators, tensors of the program
  // On rank 0 only:
  std::map<std::string, std::string> aliases;
  Json run = Json::object();
};

// Note [Saving in the background]
// A save reads parameters and moments while the next step computes; nothing writes to them before the
// optimizer's step. So they are not copied when the save begins. They are `live`: a thread copies them to
// staging memory, or writes them directly if that is full. The first operator that writes to a shard waits
// for that (Model::before_change). The same is true of moments whose writers are observed: fsdp::AdamW makes
// moments of slices as watched tensors (zero_moment()), so that its own step, a class derived from it and a
// program that takes them from state() all wait. Moments of other optimizers, of ignored parameters and of
// states made elsewhere are plain tensors: writes to them are not observed, so they are copied before save()
// returns. So is everything else that may change at any time (buffers, generators, values).
Snapshot take_snapshot(const RunState& run, bool in_background);

}  // namespace fsdp::detail
