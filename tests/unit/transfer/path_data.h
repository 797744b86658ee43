// What tests of single paths move, and where they look for it.
#pragma once

#include <fsdp/codec.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <vector>

namespace fsdp::testing {

using Floats = std::vector<float>;

inline Floats floats(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

// A slot between elements that belong to others.
struct GuardedSlot {
  explicit GuardedSlot(int64_t numel, at::ScalarType type = at::kFloat)
      : memory(torch::full({numel + 4}, -1, type)), slot(memory.narrow(0, 2, numel)) {}
  void expect_only_the_slot_was_written() const {
    EXPECT_EQ(floats(memory.narrow(0, 0, 2)), Floats({-1, -1}));
    EXPECT_EQ(floats(memory.narrow(0, memory.numel() - 2, 2)), Floats({-1, -1}));
  }
  bool untouched() const { return memory.eq(-1).all().item<bool>(); }
  at::Tensor memory, slot;
};

// A codec whose bytes a test can read: one of its own, then the whole part of every value.
struct TruncatingCodec : Codec {
  int64_t wire_bytes(int64_t numel) const override { return numel + 1; }
  void encode(const at::Tensor& values, const at::Tensor& wire) const override {
    wire.narrow(0, 0, 1).fill_(7);
    wire.narrow(0, 1, values.numel()).copy_(values);
  }
  void decode(const at::Tensor& wire, const at::Tensor& values) const override {
    values.copy_(wire.narrow(0, 1, values.numel()));
  }
};

}  // namespace fsdp::testing
