#include "files/manifest.h"

#include <fsdp/error.h>

#include <algorithm>
#include <numeric>

#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

constexpr std::string_view kCheckKey = "\"check\": \"";
constexpr std::string_view kCheckEnd = "\"\n}\n";
constexpr int64_t kMostDimensions = 64;
constexpr int kMostNesting = 16;

Json to_json(const SavedFile& file) {
  std::string blocks;
  for (const Hash128& block : file.blocks) blocks += to_hex(block);
  return {{"name", file.name},
          {"header_bytes", file.header_bytes},
          {"data_bytes", file.data_bytes},
          {"header", to_hex(file.header)},
          {"blocks", blocks}};
}

Hash128 hash_of(std::string_view digits, const JsonObject& where) {
  const auto hash = hash_from_hex(digits);
  if (!hash) where.fail("a hash is not 32 hexadecimal digits");
  return *hash;
}

SavedFile parse_file(const Json& value, const std::string& where) {
  const JsonObject object(value, where);
  SavedFile file{.name = object.text("name"),
                 .header_bytes = object.integer("header_bytes", 8, int64_t{1} << 40),
                 .data_bytes = object.integer("data_bytes", 0, int64_t{1} << 60),
                 .header = hash_of(object.text("header"), object),
                 .blocks = {}};
  if (!is_plain_name(file.name)) object.fail("'" + printable(file.name) + "' is not the name of a file here");
  const std::string blocks = object.text("blocks");
  const auto expected = static_cast<size_t>((file.data_bytes + kBlockBytes - 1) / kBlockBytes);
  if (blocks.size() % kHashDigits != 0 || blocks.size() / kHashDigits != expected)
    object.fail("there are not as many hashes as blocks");
  for (size_t at = 0; at < blocks.size(); at += kHashDigits)
    file.blocks.push_back(hash_of(std::string_view(blocks).substr(at, kHashDigits), object));
  return file;
}

// [file, offset, start..., extent...]
Json to_json(const SavedBox& saved) {
  std::vector<int64_t> numbers{saved.file, saved.offset};
  numbers.insert(numbers.end(), saved.box.start.begin(), saved.box.start.end());
  numbers.insert(numbers.end(), saved.box.extent.begin(), saved.box.extent.end());
  return numbers;
}

SavedBox parse_box(const Json& value, size_t dimensions, const std::string& where) {
  const std::vector<int64_t> numbers = integers_of(value, where, 0);
  if (numbers.size() != 2 + 2 * dimensions || numbers[0] > INT32_MAX)
    throw CheckpointError(where + ": a box has not as many dimensions as its tensor");
  const auto begin = numbers.begin() + 2;
  const auto middle = begin + static_cast<std::ptrdiff_t>(dimensions);
  return {.file = static_cast<int32_t>(numbers[0]),
          .offset = numbers[1],
          .box = {.start = {begin, middle}, .extent = {middle, numbers.end()}}};
}

Json to_json(const SavedTensor& tensor) {
  Json boxes = Json::array();
  for (const SavedBox& box : tensor.boxes) boxes.push_back(to_json(box));
  Json json = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"boxes", std::move(boxes)}};
  if (!tensor.order.empty()) json["order"] = tensor.order;
  if (tensor.real_pairs) json["real_pairs"] = true;
  return json;
}

SavedTensor parse_tensor(const Json& value, const std::string& where) {
  const JsonObject object(value, where);
  SavedTensor tensor{.dtype = object.text("dtype"),
                     .shape = object.integers("shape", 0),
                     .order = object.has("order") ? object.integers("order", 0) : std::vector<int64_t>{},
                     .real_pairs = object.has("real_pairs") && object.flag("real_pairs"),
                     .boxes = {}};
  if (static_cast<int64_t>(tensor.shape.size()) > kMostDimensions) object.fail("too many dimensions");
  if (!object.at("boxes").is_array()) object.fail("'boxes' is not a list");
  for (const Json& box : object.at("boxes"))
    tensor.boxes.push_back(parse_box(box, tensor.shape.size(), where));
  return tensor;
}

void check_shape(const SavedTensor& tensor, const std::string& where) {
  const int64_t bytes = dtype_bytes(tensor.dtype);
  if (bytes == 0) throw CheckpointError(where + ": unknown dtype '" + printable(tensor.dtype) + "'");
  if (checked_numel(tensor.shape, where) > INT64_MAX / bytes) throw CheckpointError(where + " is too large");
  if (tensor.real_pairs && (tensor.dtype != "F64" || tensor.shape.empty() || tensor.shape.back() != 2))
    throw CheckpointError(where + " is no complex128: pairs of F64 are expected");
  if (tensor.order.empty()) return;
  std::vector<int64_t> sorted = tensor.order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> all(tensor.shape.size());
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all) throw CheckpointError(where + ": 'order' does not name every dimension once");
}

// A box in memory order.
Box in_order(const Box& box, const std::vector<int64_t>& order) {
  if (order.empty()) return box;
  Box moved;
  for (const int64_t d : order) {
    moved.start.push_back(box.start[static_cast<size_t>(d)]);
    moved.extent.push_back(box.extent[static_cast<size_t>(d)]);
  }
  return moved;
}

// The elements [first, first + numel) that a box is, or CheckpointError where it is no run.
struct Run {
  int64_t first = 0;
  int64_t numel = 0;
};
Run run_of(const Box& box, const std::vector<int64_t>& shape, const std::string& where) {
  Run run{.first = 0, .numel = 1};
  int64_t stride = 1;
  bool whole = true;  // all dimensions further in are
  for (size_t d = shape.size(); d-- > 0;) {
    const int64_t extent = box.extent[d];
    if (extent < 1 || box.start[d] > shape[d] - extent)
      throw CheckpointError(where + ": a box lies outside of it");
    if (!whole && extent != 1) throw CheckpointError(where + ": a box is no run of its elements");
    whole = whole && extent == shape[d];
    run.first += box.start[d] * stride;
    run.numel *= extent;
    stride *= shape[d];
  }
  return run;
}

void check_boxes(const SavedTensor& tensor, const std::vector<SavedFile>& files, const std::string& where) {
  const int64_t numel = checked_numel(tensor.shape, where);
  const int64_t bytes = dtype_bytes(tensor.dtype);
  std::vector<Run> runs;
  const std::vector<int64_t> shape =
      in_order({.start = tensor.shape, .extent = tensor.shape}, tensor.order).extent;
  for (const SavedBox& saved : tensor.boxes) {
    if (saved.file < 0 || static_cast<size_t>(saved.file) >= files.size())
      throw CheckpointError(where + ": a box lies in a file that is not there");
    const bool empty = numel == 0;
    if (!empty) runs.push_back(run_of(in_order(saved.box, tensor.order), shape, where));
    if (empty && saved.box != Box{.start = std::vector<int64_t>(tensor.shape.size()), .extent = tensor.shape})
      throw CheckpointError(where + ": a box lies outside of it");
    const int64_t box_bytes = empty ? 0 : runs.back().numel * bytes;
    const int64_t data_bytes = files[static_cast<size_t>(saved.file)].data_bytes;
    if (box_bytes > data_bytes || saved.offset > data_bytes - box_bytes)
      throw CheckpointError(where + ": a box ends behind the end of its file");
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
  int64_t at = 0;
  for (const Run& run : runs) {
    if (run.first != at) throw CheckpointError(where + " is not covered: its boxes overlap or leave a hole");
    at += run.numel;
  }
  if (at != numel || (numel == 0 && tensor.boxes.size() != 1))
    throw CheckpointError(where + " is not covered: its boxes hold " + std::to_string(at) + " of " +
                          std::to_string(numel) + " elements");
}

// What is read back must be what was saved: numbers are finite, strings UTF-8, and nesting is not too deep.
void check_run(const Json& run, const std::string& where) {
  if (parse_json(json_text(run, where), where, kMostNesting - 1) != run)
    throw CheckpointError(where + " holds a number that is not finite, which JSON has no word for");
}

}  // namespace

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.size() > 200 || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

bool Manifest::is_of_model(const SavedTensor& tensor) const {
  return std::none_of(tensor.boxes.begin(), tensor.boxes.end(), [&](const SavedBox& box) {
    return files[static_cast<size_t>(box.file)].name.find("-state-") != std::string::npos;
  });
}

Json Manifest::part() const {
  Json json = {{"files", Json::array()}, {"tensors", Json::object()}, {"aliases", aliases}, {"run", run}};
  for (const SavedFile& file : files) json["files"].push_back(to_json(file));
  for (const auto& [name, tensor] : tensors) json["tensors"][name] = to_json(tensor);
  return json;
}

void Manifest::add_part(const Json& part, const std::string& where) {
  const JsonObject object(part, where);
  const auto first = static_cast<int32_t>(files.size());
  if (!object.at("files").is_array()) object.fail("'files' is not a list");
  for (const Json& file : object.at("files")) files.push_back(parse_file(file, where + ", a file"));
  for (const auto& [name, value] : object.object("tensors").json().items()) {
    SavedTensor tensor = parse_tensor(value, where + ", tensor '" + printable(name) + "'");
    for (SavedBox& box : tensor.boxes) {
      if (box.file > INT32_MAX - first) object.fail("a box lies in a file that is not there");
      box.file += first;
    }
    const auto [known, fresh] = tensors.try_emplace(name, tensor);
    if (fresh) continue;
    SavedTensor& old = known->second;
    if (std::tie(old.dtype, old.shape, old.order, old.real_pairs) !=
        std::tie(tensor.dtype, tensor.shape, tensor.order, tensor.real_pairs))
      object.fail("tensor '" + printable(name) + "' has another dtype or shape than on other ranks");
    old.boxes.insert(old.boxes.end(), tensor.boxes.begin(), tensor.boxes.end());
  }
  const JsonObject names = object.object("aliases");
  for (const auto& [alias, name] : names.json().items())
    if (aliases.try_emplace(alias, names.text(alias)).first->second != names.text(alias))
      object.fail("'" + printable(alias) + "' is another name of another tensor than on other ranks");
  run.update(object.object("run").json());
}

void Manifest::check(const std::string& where) const {
  std::vector<std::string_view> names;
  for (const SavedFile& file : files) names.push_back(file.name);
  std::sort(names.begin(), names.end());
  if (std::adjacent_find(names.begin(), names.end()) != names.end())
    throw CheckpointError(where + ": a file is there twice");
  for (const auto& [name, tensor] : tensors) {
    const std::string which = where + ", tensor '" + printable(name) + "'";
    check_shape(tensor, which);
    check_boxes(tensor, files, which);
  }
  for (const auto& [alias, name] : aliases)
    if (!tensors.contains(name) || tensors.contains(alias))
      throw CheckpointError(where + ": '" + printable(alias) + "' is no other name of a tensor that is here");
  check_run(run, where + ", 'run'");
}

std::string Manifest::to_text() const {
  const Json all = part();
  std::string text = "{\n";
  const auto line = [&](const char* key, const Json& value) {
    text += Json(key).dump() + ": " + json_text(value, std::string("'") + key + "' of a manifest") + ",\n";
  };
  line("format", kFormatVersion);
  line("id", id);
  line("step", step);
  line("world", world);
  line("writer", writer);
  line("block_bytes", kBlockBytes);
  for (const char* key : {"run", "aliases", "tensors", "files"}) line(key, all.at(key));
  text += kCheckKey;
  const std::string digits = to_hex(hash128(text));
  return text + digits + std::string(kCheckEnd);
}

Manifest Manifest::parse(std::string_view text, const std::string& where) {
  const size_t tail = kCheckKey.size() + kHashDigits + kCheckEnd.size();
  if (text.size() < tail || !text.ends_with(kCheckEnd) ||
      text.substr(text.size() - tail, kCheckKey.size()) != kCheckKey)
    throw CheckpointError(where + " is damaged or cut off: it does not end with its hash");
  const size_t hashed = text.size() - kHashDigits - kCheckEnd.size();
  const auto expected = hash_from_hex(text.substr(hashed, kHashDigits));
  if (!expected || hash128(text.substr(0, hashed)) != *expected)
    throw CheckpointError(where + " is damaged: it does not have the hash it ends with");
  const Json json = parse_json(text, where, kMostNesting);
  const JsonObject object(json, where);
  const int64_t version = object.integer("format");
  if (version < 1 || version > kFormatVersion)
    object.fail("format version " + std::to_string(version) + "; this build reads 1 to " +
                std::to_string(kFormatVersion) + ". Load it with a newer build");
  if (object.integer("block_bytes") != kBlockBytes) object.fail("another size of blocks than format 1 has");
  Manifest manifest{.id = object.text("id"),
                    .step = object.integer("step", 0, INT64_MAX),
                    .world = static_cast<int>(object.integer("world", 1, INT32_MAX)),
                    .writer = object.text("writer"),
                    .files = {},
                    .tensors = {},
                    .aliases = {}};
  manifest.add_part(json, where);
  manifest.check(where);
  return manifest;
}

}  // namespace fsdp::detail
