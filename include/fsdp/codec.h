// Codecs: encode parameters and gradients for communication.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace fsdp {

// Encodes the data that ranks send each other: see ShardOptions::gather_codec and reduce_codec. Every rank
// must use the same codec. Methods are called on the current stream, from the thread that runs forward or
// backward; their exceptions reach the caller. Tensors are contiguous, on the model's device.
//
// Example of your own codec, which sends signs and one scale:
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
  // The encoded size of `numel` values, in bytes.
  virtual int64_t wire_bytes(int64_t numel) const = 0;
  // encode() turns `values` [numel] into `wire` [wire_bytes(numel), uint8]; decode() is the reverse. Gathers
  // encode the shard dtype and decode into the compute dtype; reduce-scatters use the reduce dtype.
  virtual void encode(const at::Tensor& values, const at::Tensor& wire) const = 0;
  virtual void decode(const at::Tensor& wire, const at::Tensor& values) const = 0;
};

// Casts values to `type` for communication only: with bf16, half the bytes of fp32.
std::shared_ptr<const Codec> cast_codec(at::ScalarType type);

}  // namespace fsdp
