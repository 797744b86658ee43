#include "files/manifest.h"

#include <fsdp/error.h>

#include <algorithm>
#include <numeric>

#include "files/safetensors.h"
#include "files/saved_boxes.h"

namespace fsdp::detail {

namespace {

constexpr std::string_view kCheckKey = "\"check\": \"";
constexpr std::string_view kCheckEnd = "\"\n}\n";
constexpr int64_t kMostDimensions = 64;
constexpr int kMostNesting = 16;
constexpr size_t kSurelyParsed = size_t{32} << 20;  // no text up to this size grows to kMostJsonMemory

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
                 .header_bytes = object.integer("header_bytes", 8, 8 + kMostHeaderBytes),
                 .data_bytes = object.integer("data_bytes", 0, int64_t{1} << 60),
                 .header = hash_of(object.text("header"), object),
                 .blocks = {}};
  if (!is_plain_name(file.name)) object.fail("'" + printable(file.name) + "' is not the name of a file here");
  if (!object.at("blocks").is_string()) object.fail("'blocks' is not a string");
  const auto& blocks = object.at("blocks").get_ref<const std::string&>();  // may be large
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

// The run must be the same when read back: numbers are finite, strings UTF-8, and nesting is not too deep.
void check_run(const Json& run, const std::string& where) {
  if (parse_json(json_text(run, where), where, kMostNesting - 1) != run)
    throw CheckpointError(where + " holds a number that is not finite, which JSON has no word for");
}

// True for a name "state.<name of a tensor>.<key>".
bool is_moment(const std::string& name, const std::map<std::string, SavedTensor>& tensors) {
  constexpr std::string_view kState = "state.";
  const size_t key = name.rfind('.');
  return name.starts_with(kState) && key > kState.size() &&
         tensors.contains(name.substr(kState.size(), key - kState.size()));
}

}  // namespace

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.size() > 200 || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

bool Manifest::is_of_model(const std::string& name, const SavedTensor& tensor) const {
  if (foreign) return !is_moment(name, tensors);
  return std::none_of(tensor.boxes.begin(), tensor.boxes.end(), [&](const SavedBox& box) {
    return files[static_cast<size_t>(box.file)].name.find("-state-") != std::string::npos;
  });
}

bool Manifest::is_of_part(const std::string& name) const {
  const auto parts = run.find("parts");
  const size_t dot = name.find('.');
  if (parts == run.end() || !parts->is_object() || dot == std::string::npos) return false;
  const auto part = parts->find(name.substr(0, dot));
  return part != parts->end() && part->is_object() && part->contains("model") && part->at("model") == true;
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
    (foreign ? check_any_boxes : check_boxes)(tensor, files, which);
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
  text += digits + std::string(kCheckEnd);
  // A saved manifest must be loadable.
  if (std::ssize(text) > kMostManifestBytes)
    throw CheckpointError("the manifest would have " + std::to_string(text.size()) +
                          " bytes; readers take at most " + std::to_string(kMostManifestBytes));
  if (text.size() > kSurelyParsed) parse_json(text, "the manifest");
  return text;
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
  if (object.integer("block_bytes") != kBlockBytes) object.fail("another size of blocks than the format has");
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
