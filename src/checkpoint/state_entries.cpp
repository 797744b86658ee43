#include "checkpoint/state_entries.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <sstream>

#include "checkpoint/box_copy.h"

namespace fsdp::detail {

namespace {

// Converts an entry to the form of `held`: complex128 as pairs.
StateEntry in_form_of(const Held& held, StateEntry entry) {
  if (!held.real_pairs) return entry;
  entry.shape.push_back(2);
  for (TensorBox& box : entry.boxes) {
    if (box.tensor.scalar_type() != at::kComplexDouble) continue;
    box.offsets.push_back(0);
    box.tensor = at::view_as_real(box.tensor);
  }
  return entry;
}

Box box_of(const TensorBox& box) { return {.start = box.offsets, .extent = box.tensor.sizes().vec()}; }

std::string words(at::IntArrayRef numbers) {
  std::ostringstream text;
  text << numbers;
  return text.str();
}

// The error if `box` is none of a tensor with this dtype and shape; "": none. `shape` null: any elements.
std::string flaw(const TensorBox& box, at::ScalarType dtype, const std::vector<int64_t>* shape) {
  const at::Tensor& tensor = box.tensor;
  if (!tensor.defined()) return "has a box without a tensor";
  if (tensor.layout() != at::kStrided || tensor.is_meta() || tensor.is_quantized())
    return "has a box whose tensor is sparse, quantized or on the meta device";
  if (tensor.scalar_type() != dtype)
    return std::string("has another dtype: ") + c10::toString(tensor.scalar_type()) + ", expected " +
           c10::toString(dtype);
  if (shape == nullptr) return "";
  const std::string where = "has a box at " + words(box.offsets) + " of the shape " + words(tensor.sizes());
  if (tensor.sizes().size() != shape->size() || box.offsets.size() != shape->size())
    return where + ", expected " + std::to_string(shape->size()) + " offsets and dimensions";
  for (size_t d = 0; d < shape->size(); ++d)
    if (box.offsets[d] < 0 || box.offsets[d] > (*shape)[d] - tensor.sizes()[d])
      return where + ", which is not inside " + words(*shape);
  return "";
}

std::string overlap(const std::vector<TensorBox>& boxes) {
  for (size_t i = 0; i < boxes.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (const auto both = intersection(box_of(boxes[i]), box_of(boxes[j])); both && both->numel() > 0)
        return "has boxes that overlap, at " + words(boxes[j].offsets) + " and " + words(boxes[i].offsets);
  return "";
}

}  // namespace

at::Tensor kept(const at::Tensor& tensor, const StateDictOptions& options) {
  const at::Tensor own = tensor.detach().clone();
  return options.offload ? own.cpu() : own;
}

StateEntry whole_entry(const at::Tensor& tensor) {
  return {
      .shape = tensor.sizes().vec(),
      .boxes = {{.offsets = std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0), .tensor = tensor}}};
}

StateEntry box_entry(const Held& held, const StateDictOptions& options) {
  StateEntry entry{.shape = held.shape, .boxes = {}};
  const bool none = held.flat.numel() == 0 && held.numel() > 0;
  for (const HeldBox& box : none ? std::vector<HeldBox>{} : boxes_of(held))
    entry.boxes.push_back({.offsets = box.box.start, .tensor = kept(box.view.contiguous(), options)});
  if (!held.real_pairs) return entry;
  entry.shape.pop_back();
  for (TensorBox& box : entry.boxes) {
    box.offsets.pop_back();
    box.tensor = at::view_as_complex(box.tensor);
  }
  return entry;
}

void fill_whole(const at::Tensor& tensor, const StateEntry& given) {
  Held whole = make_whole("", tensor);
  whole.flat = at::empty_like(whole.flat);  // it may be the tensor's own memory
  fill(whole, given);
  const at::Tensor values = whole.real_pairs ? whole.flat.view(at::kComplexDouble) : whole.flat;
  tensor.detach().copy_(values.view(tensor.sizes()));
}

StateEntry flat_entry(const at::Tensor& flat, const StateDictOptions& options) {
  return {.shape = flat.sizes().vec(), .boxes = {{.offsets = {0}, .tensor = kept(flat, options)}}};
}

std::string mismatch(const Held& held, const StateEntry& given, bool flat) {
  const std::string name = "'" + held.name + "' ";
  std::vector<int64_t> shape = held.shape;
  if (held.real_pairs) shape.pop_back();
  if (!flat && given.shape != shape)
    return name + "has another shape: " + words(given.shape) + ", expected " + words(shape);
  if (flat && given.boxes.size() != 1)
    return name + "has " + std::to_string(given.boxes.size()) + " boxes, expected this rank's one";
  const at::ScalarType dtype = held.real_pairs ? at::kComplexDouble : held.flat.scalar_type();
  for (const TensorBox& box : given.boxes)
    if (const std::string wrong = flaw(box, dtype, flat ? nullptr : &shape); !wrong.empty())
      return name + wrong;
  if (flat) {
    const int64_t size = held.real_pairs ? held.flat.numel() / 2 : held.flat.numel();
    return given.boxes.front().tensor.numel() == size ? "" : name + "has another size";
  }
  if (const std::string wrong = overlap(given.boxes); !wrong.empty()) return name + wrong;
  const StateEntry entry = in_form_of(held, given);
  int64_t covered = 0;
  for (const TensorBox& box : entry.boxes)
    for (const HeldBox& mine : boxes_of(held))
      if (const auto both = intersection(mine.box, box_of(box))) covered += both->numel();
  return covered < held.flat.numel() ? name + "is not all there on this rank" : "";
}

void fill_flat(const Held& held, const StateEntry& given) {
  held.flat.copy_(in_form_of(held, given).boxes.front().tensor.reshape({-1}));
}

void fill(const Held& held, const StateEntry& given) {
  const StateEntry entry = in_form_of(held, given);
  for (const HeldBox& mine : boxes_of(held))
    for (const TensorBox& box : entry.boxes)
      if (const auto both = intersection(mine.box, box_of(box)))
        cut(mine.view, mine.box, *both).copy_(cut(box.tensor, box_of(box), *both));
}

}  // namespace fsdp::detail
