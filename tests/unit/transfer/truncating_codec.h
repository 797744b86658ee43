// A codec whose bytes a test can read: one of its own, then the whole part of every value.
#pragma once

#include <fsdp/codec.h>

namespace fsdp::testing {

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
