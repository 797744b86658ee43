// How parameters and gradients look on the wire.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace fsdp {

// Transforms what ranks send each other: ShardOptions::gather_codec and reduce_codec. Every rank must have
// the same. Called on the current stream; tensors are contiguous, on the model's device.
//
// A codec of one's own, here one that sends signs and one scale:
//
//   struct Signs : fsdp::Codec {
//     int64_t wire_bytes(int64_t numel) const override { return numel + 4; }
//     void encode(const at::Tensor& values, const at::Tensor& wire) const override {
//       wire.narrow(0, 0, 4).view(at::kFloat).copy_(values.abs().mean());
//       wire.narrow(0, 4, values.numel()).copy_(values.ge(0));
//     }
//     void decode(const at::Tensor& wire, const at::Tensor& values) const override {
//       const auto sign = wire.narrow(0, 4, values.numel()).to(values.scalar_type()) * 2 - 1;
//       at::mul_out(const_cast<at::Tensor&>(values), sign, wire.narrow(0, 0, 4).view(at::kFloat));
//     }
//   };
class Codec {
 public:
  virtual ~Codec() = default;
  // What `numel` values become.
  virtual int64_t wire_bytes(int64_t numel) const = 0;
  // `values` [numel] into `wire` [wire_bytes(numel), uint8], and back; values are of the shard's type before
  // a gather, of the compute type after it, and of the reduce type around a reduce.
  virtual void encode(const at::Tensor& values, const at::Tensor& wire) const = 0;
  virtual void decode(const at::Tensor& wire, const at::Tensor& values) const = 0;
};

// Values cast to `type`: half the bytes for bf16, without computing in it.
std::shared_ptr<const Codec> cast_codec(at::ScalarType type);

}  // namespace fsdp
