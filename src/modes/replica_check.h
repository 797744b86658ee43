// Compares replicas: parameters that are whole on every rank, and shards of which every row has a copy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/mesh.h"
#include "runtime/unit.h"

namespace fsdp::detail {

class Engine;

// Of the bytes of a tensor, wherever it is.
uint64_t hash_of(const at::Tensor& tensor);

// Throws c10::Error on every rank, naming rank and unit, where replicas differ. Collective.
void compare_copies(const std::vector<std::shared_ptr<Unit>>& units, Mesh& mesh);

// For Engine::after_backward: compares once in so many backwards.
std::function<void(Engine&)> check_replicas_every(int64_t backwards);

}  // namespace fsdp::detail
