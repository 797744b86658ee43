#include "transfer/flat.h"

#include <ATen/ops/view_as_real.h>

namespace fsdp::detail {

at::Tensor as_reals(const at::Tensor& flat) {
  return flat.is_complex() ? at::view_as_real(flat).view({-1}) : flat;
}

at::Tensor raw_view(const at::Tensor& flat, int64_t offset, at::IntArrayRef shape, at::IntArrayRef strides) {
  at::Tensor view =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(flat.storage()), flat.key_set(), flat.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(shape, strides, flat.storage_offset() + offset);
  return view;
}

}  // namespace fsdp::detail
