#include "checkpoint/state_entries.h"

#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include "checkpoint/box_copy.h"

namespace fsdp::detail {

namespace {

// An entry in the form that `held` has: complex128 as pairs.
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

StateEntry flat_entry(const at::Tensor& flat, const StateDictOptions& options) {
  return {.shape = flat.sizes().vec(), .boxes = {{.offsets = {0}, .tensor = kept(flat, options)}}};
}

std::string mismatch(const Held& held, const StateEntry& given, bool flat) {
  const StateEntry entry = in_form_of(held, given);
  if (!flat && entry.shape != held.shape) return "'" + held.name + "' has another shape";
  int64_t covered = 0;
  for (const TensorBox& box : entry.boxes) {
    if (box.tensor.scalar_type() != held.flat.scalar_type()) return "'" + held.name + "' has another dtype";
    if (flat && box.tensor.numel() != held.flat.numel()) return "'" + held.name + "' has another size";
    for (const HeldBox& mine : boxes_of(held))
      if (const auto both = flat ? std::optional(mine.box) : intersection(mine.box, box_of(box)))
        covered += both->numel();
  }
  return covered < held.flat.numel() ? "'" + held.name + "' is not all there on this rank" : "";
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
