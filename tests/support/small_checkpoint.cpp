#include "support/small_checkpoint.h"

#include <fsdp/error.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "files/block_file.h"
#include "files/run_folder.h"
#include "files/safetensors.h"
#include "layout/boxes.h"

namespace fsdp::testing {

namespace {

using detail::BlockReader;
using detail::BlockWriter;
using detail::Box;
using detail::Manifest;
using detail::RunFolder;
using detail::SavedBox;
using detail::SavedTensor;

using Shape = std::vector<int64_t>;

const std::map<std::string, SavedTensor>& kinds() {
  static const std::map<std::string, SavedTensor> kAll{
      {"layers.0.weight", {.dtype = "F32", .shape = {17, 31}, .order = {}, .boxes = {}}},
      {"layers.0.bias", {.dtype = "BF16", .shape = {31}, .order = {}, .boxes = {}}},
      {"layers.1.channels_last", {.dtype = "F32", .shape = {2, 3, 4, 5}, .order = {0, 2, 3, 1}, .boxes = {}}},
      {"layers.1.none", {.dtype = "F16", .shape = {0, 3}, .order = {}, .boxes = {}}},
      {"layers.1.pairs", {.dtype = "F64", .shape = {5, 2}, .order = {}, .real_pairs = true, .boxes = {}}},
      {"steps", {.dtype = "I64", .shape = {}, .order = {}, .boxes = {}}}};
  return kAll;
}

// `v` with its dimensions as `order` has them.
Shape in_order(const Shape& v, const Shape& order) {
  if (order.empty()) return v;
  Shape moved;
  for (const int64_t d : order) moved.push_back(v[static_cast<size_t>(d)]);
  return moved;
}

Shape out_of_order(const Shape& v, const Shape& order) {
  if (order.empty()) return v;
  Shape moved(v.size());
  for (size_t i = 0; i < v.size(); ++i) moved[static_cast<size_t>(order[i])] = v[i];
  return moved;
}

// Calls with the offset, in elements, of each element of a box in a row-major tensor.
void each_offset(const Shape& shape, const Box& box, const std::function<void(int64_t)>& call) {
  Shape at(shape.size(), 0);
  for (int64_t left = box.numel(); left > 0; --left) {
    int64_t offset = 0;
    for (size_t d = 0; d < shape.size(); ++d) offset = offset * shape[d] + box.start[d] + at[d];
    call(offset);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < box.extent[d]) break;
      at[d] = 0;
    }
  }
}

// The boxes of the elements that rank `rank` of `world` holds, in the order of the shape.
std::vector<Box> boxes_of_rank(const SavedTensor& tensor, int64_t rank, int64_t world) {
  const int64_t numel = detail::checked_numel(tensor.shape, "a test");
  if (numel == 0)
    return rank == 0 ? std::vector<Box>{{.start = Shape(tensor.shape.size()), .extent = tensor.shape}}
                     : std::vector<Box>{};
  const int64_t first = numel * rank / world;
  std::vector<Box> boxes =
      detail::boxes_of(in_order(tensor.shape, tensor.order), first, numel * (rank + 1) / world - first);
  for (Box& box : boxes)
    box = {.start = out_of_order(box.start, tensor.order), .extent = out_of_order(box.extent, tensor.order)};
  return boxes;
}

// What rank `rank` writes into `folder`, and its part of the manifest.
detail::Json save_rank(detail::FileOps& files, const std::string& folder, const SmallContents& contents,
                       int rank, int world) {
  Manifest part;
  std::vector<detail::SafetensorsEntry> entries;
  std::string data;
  for (const auto& [name, kind] : kinds()) {
    const auto bytes = static_cast<size_t>(detail::dtype_bytes(kind.dtype));
    for (const Box& box : boxes_of_rank(kind, rank, world)) {
      const auto begin = static_cast<int64_t>(data.size());
      each_offset(kind.shape, box, [&](int64_t offset) {
        data += contents.tensors.at(name).substr(static_cast<size_t>(offset) * bytes, bytes);
      });
      SavedTensor& saved = part.tensors.try_emplace(name, kind).first->second;
      entries.push_back({.name = name + "#" + std::to_string(saved.boxes.size()),
                         .dtype = kind.dtype,
                         .shape = box.extent,
                         .begin = begin,
                         .end = static_cast<int64_t>(data.size())});
      saved.boxes.push_back({.file = 0, .offset = begin, .box = box});
    }
  }
  BlockWriter writer(files, folder, "rank-" + std::to_string(rank) + ".safetensors",
                     make_safetensors_header(entries, {{"id", contents.id}}));
  writer.append(std::as_bytes(std::span(data)));
  part.files = {writer.finish()};
  if (rank == 0) part.run = {{"step", contents.step}, {"lr", 0.1}};
  part.aliases = {{"tied", "layers.0.weight"}};
  return part.part();
}

}  // namespace

SmallContents small_contents(int64_t step, unsigned seed) {
  SmallContents contents{.step = step, .id = "id" + std::to_string(seed), .tensors = {}};
  std::mt19937 random(seed);
  for (const auto& [name, kind] : kinds()) {
    std::string& value = contents.tensors[name];
    value.resize(
        static_cast<size_t>(detail::checked_numel(kind.shape, name) * detail::dtype_bytes(kind.dtype)));
    for (char& c : value) c = static_cast<char>(random());
  }
  return contents;
}

void save_small(detail::FileOps& files, const std::string& run, const SmallSave& save) {
  const SmallContents contents = small_contents(save.step, save.seed);
  RunFolder folder(files, run);
  const auto lock = folder.lock();
  if (!lock) throw IoError("lock", run, 0, "another process saves here");
  const std::string begun = folder.begin(save.step, contents.id);
  Manifest manifest{.id = contents.id,
                    .step = save.step,
                    .world = save.world,
                    .writer = "a test",
                    .files = {},
                    .tensors = {},
                    .aliases = {}};
  for (int rank = 0; rank < save.world; ++rank)
    manifest.add_part(save_rank(files, begun, contents, rank, save.world), "rank " + std::to_string(rank));
  manifest.check("the ranks together");
  folder.retire(folder.commit(begun, save.step, manifest.to_text()), save.keep_last, save.keep_every);
}

SmallContents load_small(detail::FileOps& files, const std::string& path) {
  const detail::OpenCheckpoint found = detail::find_checkpoint(files, path);
  const Manifest manifest = Manifest::parse(found.manifest_text, found.folder + "/manifest.json");
  std::vector<BlockReader> readers;
  for (const detail::SavedFile& file : manifest.files) readers.emplace_back(files, found.folder, file);
  SmallContents contents{.step = manifest.step, .id = manifest.id, .tensors = {}};
  for (const auto& [name, tensor] : manifest.tensors) {
    const int64_t bytes = detail::dtype_bytes(tensor.dtype);
    std::string& value = contents.tensors[name];
    value.resize(static_cast<size_t>(detail::checked_numel(tensor.shape, name) * bytes));
    for (const SavedBox& saved : tensor.boxes) {
      std::string data;
      readers.at(static_cast<size_t>(saved.file))
          .read(saved.offset, saved.offset + saved.box.numel() * bytes,
                [&](std::span<const std::byte> piece) {
                  data.append(reinterpret_cast<const char*>(piece.data()), piece.size());
                });
      const auto element = static_cast<size_t>(bytes);
      size_t at = 0;
      each_offset(tensor.shape, saved.box, [&](int64_t offset) {
        std::memcpy(value.data() + static_cast<size_t>(offset) * element, data.data() + at, element);
        at += element;
      });
    }
  }
  return contents;
}

}  // namespace fsdp::testing
