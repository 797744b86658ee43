// The keys and values of the tokens that a language model has read, so that generation computes each token
// once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdp::models {

// A cache for one batch of texts of equal length and one model. Its memory is allocated at first use, for
// `capacity` tokens. Pass it to the model's next_logits(). Threads: one.
class KeyValues {
 public:
  explicit KeyValues(int64_t capacity) : capacity_(capacity) {}

  int64_t capacity() const { return capacity_; }
  // Number of tokens read so far.
  int64_t length() const { return length_; }
  // Forgets all tokens and keeps the memory.
  void clear() { length_ = 0; }

  // For models. Throws c10::Error if `time` more tokens do not fit, or if gradients are recorded: the cache
  // has no backward.
  void check(int64_t time) const;
  // Stores the keys and values of new tokens in `block` and returns the causal attention of their queries
  // over all tokens. q [batch, heads, time, head_dim]; k and v [batch, kv_heads, time, head_dim].
  at::Tensor attend(int64_t block, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
  // After all blocks: `time` more tokens count as read.
  void advance(int64_t time) { length_ += time; }

 private:
  struct Block {
    at::Tensor keys, values;  // [batch, kv_heads, capacity, head_dim]
  };

  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace fsdp::models
