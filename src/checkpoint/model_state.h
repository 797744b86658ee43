// The tensors of a model, for checkpoints.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/held.h"
#include "runtime/model.h"

namespace fsdp::detail {

// This rank's part of a tensor, and whether this rank saves it: of replicas one rank does.
struct Holding {
  Held held;
  bool saves = true;
};

// This rank's part of a sharded parameter, whose slice or state is `flat` [size of the slice].
Held held_of(const Model& model, const UnitParam& param, std::string name, const at::Tensor& flat);
// True if this rank saves its part of params[index].
bool saves_param(const Model& model, size_t index);

// Parameters that are sharded or replicated.
std::vector<Holding> held_params(const Model& model);

// Tensors that are each rank's own: buffers and ignored parameters, by name. Rank 0's are saved.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
NamedTensors own_tensors(const Model& model);

// Another name of a tied parameter -> the name it is saved under.
std::map<std::string, std::string> aliases_of(const Model& model);

// Other ranks may read a shard in place until they know of a write. So all ranks announce theirs, in one
// order, before they write shards one after the other.
void announce_writes(const Model& model);

}  // namespace fsdp::detail
