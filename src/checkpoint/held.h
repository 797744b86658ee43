// Held: one rank's elements of a tensor, and their position in the whole tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "layout/boxes.h"

namespace fsdp::detail {

// A contiguous part of a tensor's elements, in memory order. complex128 tensors are pairs of fp64 here.
struct Held {
  std::string name;
  std::vector<int64_t> shape;  // shape of the whole tensor
  std::vector<int64_t>
      order;  // memory order of the dimensions; empty: as in the shape. See Note [Saved tensors].
  bool real_pairs = false;
  int64_t start = 0;  // first element of the part
  at::Tensor flat;    // [size], contiguous
  bool live = false;  // the next write to a shard may change this memory: not a copy

  int64_t numel() const;
  // The elements in the tensor's own dtype: complex128 is no pairs here.
  at::Tensor elements() const;
  std::vector<int64_t> tensor_shape() const;
};

// A box of it, as in the file.
struct HeldBox {
  Box box;          // in the order of the shape
  at::Tensor view;  // of `flat`, with the extents of the box; maybe permuted
};
std::vector<HeldBox> boxes_of(const Held& held);

// `flat` has the elements [start, start + size), in memory order, of a tensor with this shape and these dense
// strides. Throws c10::Error for a dtype that safetensors cannot hold.
Held make_held(std::string name, std::vector<int64_t> shape, const std::vector<int64_t>& strides,
               int64_t start, const at::Tensor& flat);
// All of `tensor`. `flat` is a copy of it if its elements are not contiguous.
Held make_whole(std::string name, const at::Tensor& tensor);

// All of a tensor without gaps, in place: `flat` is its memory.
Held make_dense(std::string name, const at::Tensor& tensor);

// The name of a dtype in safetensors; throws c10::Error, which names `tensor`, if it has none.
std::string dtype_name(at::ScalarType type, const std::string& tensor);
// None if LibTorch has no dtype of that name.
std::optional<at::ScalarType> dtype_of(const std::string& name);

}  // namespace fsdp::detail
