#include "files/checkpoint_reader.h"

#include <fsdp/error.h>

#include <algorithm>
#include <cstring>

#include "files/open_checkpoint.h"
#include "files/safetensors.h"
#include "files/saved_boxes.h"

namespace fsdp::detail {

namespace {

constexpr size_t kMostOpenFiles = 16;

}  // namespace

CheckpointReader::CheckpointReader(FileOps& files, const std::string& path) : files_(files) {
  AnyCheckpoint found = open_checkpoint(files, path);
  folder_ = std::move(found.folder);
  manifest_ = std::move(found.manifest);
}

BlockReader& CheckpointReader::file(int32_t index) {
  const auto known =
      std::find_if(opened_.begin(), opened_.end(), [&](const Opened& one) { return one.index == index; });
  if (known != opened_.end()) {
    opened_.splice(opened_.begin(), opened_, known);
    return *opened_.front().reader;
  }
  const SavedFile& saved = manifest_.files[static_cast<size_t>(index)];
  if (!files_.exists(folder_ + "/" + saved.name))
    throw CheckpointError(folder_ + " is not whole: " + saved.name +
                          " is missing. Copy the folder again, or take another checkpoint");
  if (opened_.size() == kMostOpenFiles) opened_.pop_back();
  opened_.push_front({.index = index, .reader = std::make_unique<BlockReader>(files_, folder_, saved)});
  return *opened_.front().reader;
}

SavedTensorReader::SavedTensorReader(CheckpointReader& checkpoint, const SavedTensor& tensor)
    : checkpoint_(checkpoint), tensor_(tensor), element_(dtype_bytes(tensor.dtype)) {
  bytes_ = checked_numel(tensor.shape, "a tensor") * element_;
  const bool runs = std::all_of(tensor.boxes.begin(), tensor.boxes.end(),
                                [&](const SavedBox& saved) { return is_run(saved.box, tensor.shape); });
  if (!tensor.order.empty() || !runs || bytes_ == 0) return;
  for (const SavedBox& saved : tensor.boxes) {
    int64_t first = 0;
    for (size_t d = 0; d < tensor.shape.size(); ++d) first = first * tensor.shape[d] + saved.box.start[d];
    pieces_.push_back(
        {.begin = first * element_, .end = (first + saved.box.numel()) * element_, .saved = &saved});
  }
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
}

void SavedTensorReader::read(int64_t begin, int64_t end, const BlockReader::Take& take) {
  if (begin >= end) return;
  if (pieces_.empty()) {
    assemble();
    return take(std::span(whole_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  }
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                                [](int64_t at, const Piece& one) { return at < one.end; });
  for (; begin < end; ++piece) {
    const int64_t stop = std::min(end, piece->end);
    const int64_t shift = piece->saved->offset - piece->begin;
    checkpoint_.file(piece->saved->file).read(begin + shift, stop + shift, take);
    begin = stop;
  }
}

void SavedTensorReader::assemble() {
  if (!whole_.empty()) return;
  // A manifest may promise more than there is: this finds files that are too short before memory is taken.
  for (const SavedBox& saved : tensor_.boxes) checkpoint_.file(saved.file);
  try {
    whole_.resize(static_cast<size_t>(bytes_));
  } catch (const std::exception&) {
    throw CheckpointError(checkpoint_.folder() + " has a tensor of " + std::to_string(bytes_) +
                          " bytes whose memory order is not row-major. There is not enough memory to put it "
                          "together");
  }
  for (const SavedBox& saved : tensor_.boxes) scatter(saved);
}

// Rows of a box, its last dimension, are contiguous in the tensor.
void SavedTensorReader::scatter(const SavedBox& saved) {
  const std::vector<int64_t>& shape = tensor_.shape;
  const Box& box = saved.box;
  const int64_t row_bytes = box.extent.back() * element_;
  int64_t at = 0;  // in bytes of the box
  const auto place = [&](int64_t row) {
    int64_t first = 0, stride = shape.back();
    for (size_t d = shape.size() - 1; d-- > 0; row /= box.extent[d]) {
      first += (box.start[d] + row % box.extent[d]) * stride;
      stride *= shape[d];
    }
    return (first + box.start.back()) * element_;
  };
  const auto take = [&](std::span<const std::byte> piece) {
    while (!piece.empty()) {
      const int64_t within = at % row_bytes;
      const size_t n = std::min(piece.size(), static_cast<size_t>(row_bytes - within));
      std::memcpy(whole_.data() + place(at / row_bytes) + within, piece.data(), n);
      piece = piece.subspan(n);
      at += static_cast<int64_t>(n);
    }
  };
  checkpoint_.file(saved.file).read(saved.offset, saved.offset + box.numel() * element_, take);
}

}  // namespace fsdp::detail
