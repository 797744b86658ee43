#include "models/key_values.h"

#include <ATen/ATen.h>

#include <optional>

namespace fsdp::models {
namespace {

// Appends `more` to the first `length` tokens of `kept`, which is made here at first use. Returns all tokens.
at::Tensor append(at::Tensor& kept, const at::Tensor& more, int64_t length, int64_t capacity) {
  if (!kept.defined()) kept = at::empty({more.size(0), more.size(1), capacity, more.size(3)}, more.options());
  TORCH_CHECK(kept.size(0) == more.size(0), "a batch of ", more.size(0),
              " texts, but the keys and values are those of ", kept.size(0));
  kept.narrow(2, length, more.size(2)).copy_(more);
  return kept.narrow(2, 0, length + more.size(2));
}

}  // namespace

void KeyValues::check(int64_t time) const {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "keys and values are cached without gradients: call next_logits() under torch::NoGradGuard");
  TORCH_CHECK(time > 0 && length_ + time <= capacity_, time, " tokens after ", length_,
              ", but the keys and values have memory for ", capacity_, " tokens");
}

at::Tensor KeyValues::attend(int64_t block, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  if (static_cast<size_t>(block) >= blocks_.size()) blocks_.resize(static_cast<size_t>(block) + 1);
  Block& kept = blocks_[static_cast<size_t>(block)];
  const int64_t time = q.size(2), all = length_ + time;
  const at::Tensor keys = append(kept.keys, k, length_, capacity_);
  const at::Tensor values = append(kept.values, v, length_, capacity_);
  // is_causal lets query i read keys 0..i, which is right only if no tokens came before.
  const bool first = length_ == 0;
  std::optional<at::Tensor> mask;
  if (!first && time > 1)
    mask = at::ones({time, all}, q.options().dtype(at::kBool)).tril(/*diagonal=*/length_);
  return at::scaled_dot_product_attention(q, keys, values, mask, /*dropout_p=*/0.0, /*is_causal=*/first,
                                          /*scale=*/std::nullopt, /*enable_gqa=*/q.size(1) != k.size(1));
}

}  // namespace fsdp::models
