// What one rank saves of a run.
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
  std::vector<Held> state;  // moments, generators, tensors of the user's
  // Of rank 0.
  std::map<std::string, std::string> aliases;
  Json run = Json::object();
};

// Note [Saving in the background]
// A save reads parameters and moments while the next step computes; nothing writes to them before the
// optimizer's step. So they are not copied when the save begins: they are `live`, and a thread copies them to
// staging memory, or writes them where that is full. The first operator that writes to a shard waits for that
// (Model::before_change). fsdp::AdamW writes moments and parameters in one operator, so the moments are safe
// as well; other optimizers write moments first, of which nobody hears: theirs are copied before save()
// returns. Everything that training may change at any time (buffers, generators, values) is copied at once,
// too.
Snapshot take_snapshot(const RunState& run, const Model& model, bool in_background);

}  // namespace fsdp::detail
