// Compares replicas: parameters that are whole on every rank, and shards that every row has a copy of.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/mesh.h"
#include "runtime/unit.h"

namespace fsdp::detail {

class Engine;

// The hash of a tensor's bytes, on any device.
uint64_t hash_of(const at::Tensor& tensor);

// Throws c10::Error on every rank, naming rank and unit, if replicas differ. Collective.
void compare_copies(const std::vector<std::shared_ptr<Unit>>& units, Mesh& mesh);

// A function for Engine::after_backward: compares every `backwards` backwards.
std::function<void(Engine&)> check_replicas_every(int64_t backwards);

}  // namespace fsdp::detail
