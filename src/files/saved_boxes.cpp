#include "files/saved_boxes.h"

#include <fsdp/error.h>

#include <algorithm>

#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

// A box with its dimensions in memory order.
Box in_order(const Box& box, const std::vector<int64_t>& order) {
  if (order.empty()) return box;
  Box moved;
  for (const int64_t d : order) {
    moved.start.push_back(box.start[static_cast<size_t>(d)]);
    moved.extent.push_back(box.extent[static_cast<size_t>(d)]);
  }
  return moved;
}

// The elements [first, first + numel) of a box.
struct Run {
  int64_t first = 0;
  int64_t numel = 0;
};
Run run_of(const Box& box, const std::vector<int64_t>& shape) {
  Run run{.first = 0, .numel = 1};
  for (size_t d = 0; d < shape.size(); ++d) {
    run.first = run.first * shape[d] + box.start[d];
    run.numel *= box.extent[d];
  }
  return run;
}

void need_inside(const Box& box, const std::vector<int64_t>& shape, const std::string& where) {
  for (size_t d = 0; d < shape.size(); ++d)
    if (box.extent[d] < 1 || box.start[d] < 0 || box.start[d] > shape[d] - box.extent[d])
      throw CheckpointError(where + ": a box lies outside of it");
}

void need_inside_file(const SavedBox& saved, int64_t bytes, const std::vector<SavedFile>& files,
                      const std::string& where) {
  if (saved.file < 0 || static_cast<size_t>(saved.file) >= files.size())
    throw CheckpointError(where + ": a box lies in a file that is not there");
  const int64_t data_bytes = files[static_cast<size_t>(saved.file)].data_bytes;
  if (bytes > data_bytes || saved.offset > data_bytes - bytes)
    throw CheckpointError(where + ": a box ends behind the end of its file");
}

void need_all(int64_t held, int64_t numel, const std::string& where) {
  if (held != numel)
    throw CheckpointError(where + " is not covered: its boxes hold " + std::to_string(held) + " of " +
                          std::to_string(numel) + " elements");
}

// Checks the one box of a tensor without elements.
void check_empty(const SavedTensor& tensor, const std::vector<SavedFile>& files, const std::string& where) {
  const Box whole{.start = std::vector<int64_t>(tensor.shape.size()), .extent = tensor.shape};
  for (const SavedBox& saved : tensor.boxes) {
    need_inside_file(saved, 0, files, where);
    if (saved.box != whole) throw CheckpointError(where + ": a box lies outside of it");
  }
  if (tensor.boxes.size() != 1)
    throw CheckpointError(where + " is not covered: it has no elements, and one box");
}

bool overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.start.size(); ++d)
    if (a.start[d] >= b.start[d] + b.extent[d] || b.start[d] >= a.start[d] + a.extent[d]) return false;
  return true;
}

}  // namespace

bool is_run(const Box& box, const std::vector<int64_t>& shape) {
  bool whole = true;  // all inner dimensions are whole
  for (size_t d = shape.size(); d-- > 0;) {
    if (!whole && box.extent[d] != 1) return false;
    whole = whole && box.extent[d] == shape[d];
  }
  return true;
}

void check_boxes(const SavedTensor& tensor, const std::vector<SavedFile>& files, const std::string& where) {
  const int64_t numel = checked_numel(tensor.shape, where), bytes = dtype_bytes(tensor.dtype);
  if (numel == 0) return check_empty(tensor, files, where);
  std::vector<Run> runs;
  const std::vector<int64_t> shape =
      in_order({.start = tensor.shape, .extent = tensor.shape}, tensor.order).extent;
  for (const SavedBox& saved : tensor.boxes) {
    const Box box = in_order(saved.box, tensor.order);
    need_inside(box, shape, where);
    if (!is_run(box, shape)) throw CheckpointError(where + ": a box is no run of its elements");
    runs.push_back(run_of(box, shape));
    need_inside_file(saved, runs.back().numel * bytes, files, where);
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
  int64_t at = 0;
  for (const Run& run : runs) {
    if (run.first != at) throw CheckpointError(where + " is not covered: its boxes overlap or leave a hole");
    at += run.numel;
  }
  need_all(at, numel, where);
}

void check_any_boxes(const SavedTensor& tensor, const std::vector<SavedFile>& files,
                     const std::string& where) {
  const int64_t numel = checked_numel(tensor.shape, where), bytes = dtype_bytes(tensor.dtype);
  if (numel == 0) return check_empty(tensor, files, where);
  std::vector<const Box*> boxes;
  int64_t held = 0;
  for (const SavedBox& saved : tensor.boxes) {
    need_inside(saved.box, tensor.shape, where);
    need_inside_file(saved, saved.box.numel() * bytes, files, where);
    boxes.push_back(&saved.box);
  }
  // Sorted by the first dimension, so that a box is compared only with those that begin before it ends.
  const auto first = [](const Box* box) { return box->start.empty() ? 0 : box->start.front(); };
  std::ranges::sort(boxes, {}, first);
  for (size_t i = 0; i < boxes.size(); ++i) {
    const int64_t end = boxes[i]->start.empty() ? 1 : first(boxes[i]) + boxes[i]->extent.front();
    for (size_t j = i + 1; j < boxes.size() && first(boxes[j]) < end; ++j)
      if (overlap(*boxes[i], *boxes[j]))
        throw CheckpointError(where + " is there twice: two files hold the same elements of it");
    held += boxes[i]->numel();
  }
  need_all(held, numel, where);
}

}  // namespace fsdp::detail
