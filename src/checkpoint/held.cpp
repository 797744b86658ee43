#include "checkpoint/held.h"

#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

namespace fsdp::detail {

namespace {

constexpr std::array<std::pair<at::ScalarType, const char*>, 16> kNames{{
    {at::kBool, "BOOL"},
    {at::kByte, "U8"},
    {at::kChar, "I8"},
    {at::kShort, "I16"},
    {at::kInt, "I32"},
    {at::kLong, "I64"},
    {at::kUInt16, "U16"},
    {at::kUInt32, "U32"},
    {at::kUInt64, "U64"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kFloat, "F32"},
    {at::kDouble, "F64"},
    {at::kComplexFloat, "C64"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
}};

int64_t product(const std::vector<int64_t>& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

// Empty if memory has the order of the shape. Dimensions of extent 1 can be anywhere in the order.
std::vector<int64_t> memory_order(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  std::vector<int64_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
  });
  std::vector<int64_t> real;
  for (const int64_t d : order)
    if (shape[static_cast<size_t>(d)] != 1) real.push_back(d);
  return std::is_sorted(real.begin(), real.end()) ? std::vector<int64_t>{} : order;
}

std::vector<int64_t> pick(const std::vector<int64_t>& values, const std::vector<int64_t>& order) {
  std::vector<int64_t> picked;
  for (const int64_t d : order) picked.push_back(values[static_cast<size_t>(d)]);
  return picked;
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return back;
}

}  // namespace

int64_t Held::numel() const { return product(shape); }

at::Tensor Held::elements() const { return real_pairs ? at::view_as_complex(flat.view({-1, 2})) : flat; }

std::vector<int64_t> Held::tensor_shape() const {
  std::vector<int64_t> own = shape;
  if (real_pairs) own.pop_back();
  return own;
}

std::vector<HeldBox> boxes_of(const Held& held) {
  std::vector<HeldBox> boxes;
  if (held.numel() == 0)
    return {{.box = {.start = std::vector<int64_t>(held.shape.size(), 0), .extent = held.shape},
             .view = held.flat.view(held.shape)}};
  const bool plain = held.order.empty();
  const std::vector<int64_t> back = inverse(held.order);
  int64_t at = 0;
  for (const Box& run :
       boxes_of(plain ? held.shape : pick(held.shape, held.order), held.start, held.flat.numel())) {
    const int64_t n = run.numel();
    const at::Tensor view = held.flat.narrow(0, at, n).view(run.extent);
    boxes.push_back(plain ? HeldBox{.box = run, .view = view}
                          : HeldBox{.box = {.start = pick(run.start, back), .extent = pick(run.extent, back)},
                                    .view = view.permute(back)});
    at += n;
  }
  return boxes;
}

Held make_held(std::string name, std::vector<int64_t> shape, const std::vector<int64_t>& strides,
               int64_t start, const at::Tensor& flat) {
  Held held{.name = std::move(name),
            .shape = std::move(shape),
            .order = {},
            .real_pairs = flat.scalar_type() == at::kComplexDouble,
            .start = start,
            .flat = flat};
  held.order = memory_order(held.shape, strides);
  if (held.real_pairs) {
    if (!held.order.empty()) held.order.push_back(static_cast<int64_t>(held.shape.size()));
    held.shape.push_back(2);
    held.start *= 2;
    held.flat = at::view_as_real(flat).view({-1});
  }
  (void)dtype_name(held.flat.scalar_type(), held.name);
  return held;
}

Held make_whole(std::string name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_quantized(), "fsdp: '", name,
              "' is sparse or quantized; a checkpoint holds dense tensors only");
  const at::Tensor dense = tensor.detach().resolve_conj().resolve_neg().contiguous();
  return make_held(std::move(name), dense.sizes().vec(), dense.strides().vec(), 0, dense.view({-1}));
}

Held make_dense(std::string name, const at::Tensor& tensor) {
  return make_held(std::move(name), tensor.sizes().vec(), tensor.strides().vec(), 0,
                   tensor.detach().as_strided({tensor.numel()}, {1}));
}

std::string dtype_name(at::ScalarType type, const std::string& tensor) {
  for (const auto& [known, name] : kNames)
    if (known == type) return name;
  TORCH_CHECK(false, "fsdp: '", tensor, "' has the dtype ", type, ", which a checkpoint cannot hold");
}

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  for (const auto& [type, known] : kNames)
    if (known == name) return type;
  return std::nullopt;
}

}  // namespace fsdp::detail
