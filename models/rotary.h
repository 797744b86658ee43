// Rotary position embedding, as Llama uses it: the two halves of a head are rotated against each other.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::models {

struct RotaryTables {
  at::Tensor cos, sin;  // [time, head_dim]
};

// Rotates `x` [batch, head, time, head_dim] by the angles of its positions.
at::Tensor apply_rotary(const at::Tensor& x, const RotaryTables& tables);

// Makes the tables at first use and keeps them, in fp32, on the last device used.
//
// They are no buffers: LibTorch would put those in every checkpoint, where Hugging Face has none, and
// to(kBFloat16) would round them. Since they are made late, they are also right for a model that was built on
// the meta device.
class RotaryEmbedding {
 public:
  RotaryEmbedding(int64_t head_dim, double theta) : head_dim_(head_dim), theta_(theta) {}

  // Tables for positions [0, time), with device and dtype of `like`.
  RotaryTables tables(int64_t time, const at::Tensor& like);

 private:
  int64_t head_dim_;
  double theta_;
  RotaryTables kept_;
};

}  // namespace fsdp::models
