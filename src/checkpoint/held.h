// What one rank holds of a tensor, and where that lies in the whole of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "layout/boxes.h"

namespace fsdp::detail {

// A run of a tensor's elements in memory order. A complex128 tensor is one of fp64 pairs here.
struct Held {
  std::string name;
  std::vector<int64_t> shape;  // of the whole tensor
  std::vector<int64_t>
      order;  // of its dimensions in memory; empty: as in the shape. See Note [Saved tensors].
  bool real_pairs = false;
  int64_t start = 0;  // of the run
  at::Tensor flat;    // [size], contiguous
  bool live = false;  // memory that the next write to a shard may change: not a copy

  int64_t numel() const;
  // As the tensor has them: complex128 is no pairs here.
  at::Tensor elements() const;
  std::vector<int64_t> tensor_shape() const;
};

// A box of it, as the file has it.
struct HeldBox {
  Box box;          // in the order of the shape
  at::Tensor view;  // of `flat`, with the extents of the box; maybe permuted
};
std::vector<HeldBox> boxes_of(const Held& held);

// `flat` are the elements [start, start + size) in memory order of a tensor with this shape and these dense
// strides. Throws c10::Error for a dtype that safetensors cannot hold.
Held make_held(std::string name, std::vector<int64_t> shape, const std::vector<int64_t>& strides,
               int64_t start, const at::Tensor& flat);
// All of `tensor`. `flat` is a copy of it where its elements do not lie one after the other.
Held make_whole(std::string name, const at::Tensor& tensor);

// All of a tensor without gaps, where it lies: `flat` is its memory.
Held make_dense(std::string name, const at::Tensor& tensor);

// The name of a dtype in safetensors; throws c10::Error, which names `tensor`, where it has none.
std::string dtype_name(at::ScalarType type, const std::string& tensor);
// None for a name that LibTorch has no dtype for.
std::optional<at::ScalarType> dtype_of(const std::string& name);

}  // namespace fsdp::detail
