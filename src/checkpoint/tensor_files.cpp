#include "checkpoint/tensor_files.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "checkpoint/box_copy.h"
#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

// Memory for data between a device and a file.
constexpr int64_t kStagingBytes = int64_t{16} << 20;

struct Piece {
  const Held* held = nullptr;
  HeldBox box;

  int64_t bytes() const { return box.view.numel() * held->flat.element_size(); }
};

std::string file_name(int rank, const std::string& part, size_t index, size_t count) {
  const auto digits = [](size_t number) {
    const std::string text = std::to_string(number);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  return "shard-" + digits(static_cast<size_t>(rank)) + "-" + part + "-" + digits(index + 1) + "-of-" +
         digits(count) + ".safetensors";
}

// The metadata about boxes that PyTorch's reader needs.
std::map<std::string, std::string> metadata_of(const std::vector<Piece>& pieces, const Manifest& manifest) {
  Json boxes = Json::object();
  for (const Piece& piece : pieces) boxes[piece.held->name] = {{"saved_offsets", piece.box.box.start}};
  return {{"format", "pt"},
          {"DCP_VERSION", "1.0"},
          {"DCP_SHARDING_INFO", boxes.dump()},
          {"fsdp_id", manifest.id},
          {"fsdp_step", std::to_string(manifest.step)}};
}

// The bytes of a contiguous tensor. A view of one element may have any stride, which view() does not accept.
at::Tensor flat_bytes(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

void append(BlockWriter& writer, const at::Tensor& view) {
  const at::Tensor flat = flat_bytes(view.contiguous());
  for (int64_t at = 0; at < flat.numel();) {
    const int64_t n = flat.is_cpu() ? flat.numel() : std::min(kStagingBytes, flat.numel() - at);
    const at::Tensor here = flat.narrow(0, at, n).cpu();
    writer.append({static_cast<const std::byte*>(here.const_data_ptr()), static_cast<size_t>(n)});
    at += n;
  }
}

void write_file(FileOps& files, const std::string& folder, const std::string& name,
                const std::vector<Piece>& pieces, Manifest& manifest, const Written& read) {
  std::vector<SafetensorsEntry> entries;
  int64_t at = 0;
  const auto index = static_cast<int32_t>(manifest.files.size());
  for (const Piece& piece : pieces) {
    const Held& held = *piece.held;
    const std::string dtype = dtype_name(held.flat.scalar_type(), held.name);
    entries.push_back({.name = held.name,
                       .dtype = dtype,
                       .shape = piece.box.box.extent,
                       .begin = at,
                       .end = at + piece.bytes()});
    SavedTensor& saved = manifest.tensors[held.name];
    saved.dtype = dtype;
    saved.shape = held.shape;
    saved.order = held.order;
    saved.real_pairs = held.real_pairs;
    saved.boxes.push_back({.file = index, .offset = at, .box = piece.box.box});
    at += piece.bytes();
  }
  // Data begins on a page, and so do its blocks.
  BlockWriter writer(files, folder, name,
                     make_safetensors_header(entries, metadata_of(pieces, manifest), 4096), at);
  for (const Piece& piece : pieces) {
    append(writer, piece.box.view);
    read(*piece.held);
  }
  manifest.files.push_back(writer.finish());
}

// Bytes of a file, and their target.
struct ReadRun {
  int32_t file = 0;
  int64_t begin = 0;
  int64_t end = 0;
  at::ScalarType saved = at::kFloat;
  at::Tensor into;  // with the shape that the elements have in the file
};

std::vector<ReadRun> plan_reads(const std::vector<Held>& tensors, const Manifest& manifest) {
  std::vector<ReadRun> reads;
  for (const Held& held : tensors) {
    if (held.flat.numel() == 0) continue;
    const SavedTensor& saved = manifest.tensors.at(held.name);
    const int64_t bytes = dtype_bytes(saved.dtype);
    for (const HeldBox& mine : boxes_of(held))
      for (const SavedBox& theirs : saved.boxes) {
        const auto both = intersection(mine.box, theirs.box);
        if (!both) continue;
        each_run(*both, theirs.box, [&](const Box& run) {
          const int64_t begin = theirs.offset + offset_in(theirs.box, run.start) * bytes;
          reads.push_back({.file = theirs.file,
                           .begin = begin,
                           .end = begin + run.numel() * bytes,
                           .saved = dtype_of(saved.dtype).value(),
                           .into = cut(mine.view, mine.box, run)});
        });
      }
  }
  std::stable_sort(reads.begin(), reads.end(), [](const ReadRun& a, const ReadRun& b) {
    return std::pair(a.file, a.begin) < std::pair(b.file, b.begin);
  });
  return reads;
}

at::Tensor bytes_of(std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())},
                       at::TensorOptions().dtype(at::kByte));
}

// Reads a block at a time if the elements are contiguous in the file, else all at once.
void read_run(BlockReader& file, const ReadRun& run) {
  const bool same = run.saved == run.into.scalar_type() && run.into.is_contiguous();
  if (same && run.into.is_cpu())
    return file.read_into(run.begin, {static_cast<std::byte*>(run.into.data_ptr()), run.into.nbytes()});
  at::Tensor bytes =
      same ? flat_bytes(run.into) : at::empty({run.end - run.begin}, at::TensorOptions().dtype(at::kByte));
  int64_t at = 0;
  file.read(run.begin, run.end, [&](std::span<const std::byte> piece) {
    const auto n = static_cast<int64_t>(piece.size());
    bytes.narrow(0, at, n).copy_(bytes_of(piece));
    at += n;
  });
  if (!same) run.into.copy_(bytes.view(run.saved).view(run.into.sizes()));
}

}  // namespace

void write_tensors(FileOps& files, const std::string& folder, int rank, const std::string& part,
                   const std::vector<Held>& tensors, Manifest& manifest, const Written& written) {
  std::vector<std::vector<Piece>> by_file;
  std::map<const Held*, size_t> left;  // boxes still to be written
  for (const Held& held : tensors) {
    std::vector<HeldBox> boxes = boxes_of(held);
    left[&held] = boxes.size();
    // The largest first, which gives one large file and small ones.
    std::stable_sort(boxes.begin(), boxes.end(),
                     [](const HeldBox& a, const HeldBox& b) { return a.view.numel() > b.view.numel(); });
    if (boxes.size() > by_file.size()) by_file.resize(boxes.size());
    for (size_t i = 0; i < boxes.size(); ++i)
      by_file[i].push_back({.held = &held, .box = std::move(boxes[i])});
  }
  const auto read = [&](const Held& held) {
    if (--left[&held] == 0 && written) written(held);
  };
  for (size_t i = 0; i < by_file.size(); ++i) {
    // By element size, so that all are aligned.
    std::stable_sort(by_file[i].begin(), by_file[i].end(), [](const Piece& a, const Piece& b) {
      return a.held->flat.element_size() > b.held->flat.element_size();
    });
    write_file(files, folder, file_name(rank, part, i, by_file.size()), by_file[i], manifest, read);
  }
}

TensorReader::TensorReader(const FileOps& files, std::string folder, const Manifest& manifest)
    : files_(files), folder_(std::move(folder)), manifest_(manifest) {}

BlockReader& TensorReader::file(int32_t index) {
  if (index != open_index_) {
    open_index_ = -1;
    open_ = std::make_unique<BlockReader>(files_, folder_, manifest_.files[static_cast<size_t>(index)]);
    open_index_ = index;
  }
  return *open_;
}

void TensorReader::verify(const std::vector<Held>& tensors) {
  for (const ReadRun& run : plan_reads(tensors, manifest_))
    file(run.file).read(run.begin, run.end, [](std::span<const std::byte>) {});
}

void TensorReader::fill(const std::vector<Held>& tensors) {
  for (const ReadRun& run : plan_reads(tensors, manifest_)) read_run(file(run.file), run);
}

}  // namespace fsdp::detail
