// Ledger: the bytes that a sharded model has allocated on this rank, by kind. The only source of such counts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/executor.h"
#include "runtime/gradients.h"
#include "runtime/model.h"

namespace fsdp::detail {

enum class MemoryKind : uint8_t {
  shards,
  gradient_shards,
  slots,               // the arena
  private_slots,       // of gathered units that are not in the arena
  saved_for_backward,  // by reshard groups
  buffers,             // gradients that are not reduced
  partial_sums,        // of a step made of several backwards
  wires,               // encoded shards in flight
};
constexpr size_t kMemoryKinds = 8;

class Ledger {
 public:
  int64_t& operator[](MemoryKind kind) { return bytes_[static_cast<size_t>(kind)]; }
  int64_t operator[](MemoryKind kind) const { return bytes_[static_cast<size_t>(kind)]; }
  int64_t total() const;

 private:
  std::array<int64_t, kMemoryKinds> bytes_ = {};
};

Ledger take_ledger(const Model& model, const Executor& executor, const Gradients& gradients);

}  // namespace fsdp::detail
