#include "files/safetensors.h"

#include <fsdp/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "files/json.h"

namespace fsdp::detail {

namespace {

constexpr const char* kMetadata = "__metadata__";

static_assert(std::endian::native == std::endian::little, "safetensors are little endian");

int64_t header_length(std::string_view start) {
  uint64_t length = 0;
  std::memcpy(&length, start.data(), sizeof length);
  return length > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(length);
}

SafetensorsEntry parse_entry(const std::string& name, const Json& value, const std::string& where) {
  const JsonObject entry(value, where + ", tensor '" + printable(name) + "'");
  SafetensorsEntry result{
      .name = name, .dtype = entry.text("dtype"), .shape = entry.integers("shape", 0), .begin = 0, .end = 0};
  const std::vector<int64_t> offsets = entry.integers("data_offsets", 0);
  if (offsets.size() != 2 || offsets[1] < offsets[0])
    entry.fail("'data_offsets' are not a beginning and an end");
  result.begin = offsets[0];
  result.end = offsets[1];
  const int64_t bytes = dtype_bytes(result.dtype);
  if (bytes == 0) entry.fail("unknown dtype '" + printable(result.dtype) + "'");
  const int64_t numel = checked_numel(result.shape, entry.where());
  if (numel > INT64_MAX / bytes || numel * bytes != result.end - result.begin)
    entry.fail("dtype and shape do not make up its " + std::to_string(result.end - result.begin) + " bytes");
  return result;
}

}  // namespace

std::string other_format(std::string_view start) {
  if (start.size() > 8 && start[8] == '{') return "";  // a header's length may look like a pickle's start
  if (start.starts_with("PK\x03\x04"))
    return "it is a zip archive, as torch::save and torch.save write them (a TorchScript model, a state "
           "dict). Such files may run code when read, so they are never opened here: load it in Python and "
           "save it with safetensors.torch.save_file";
  if (start.size() > 1 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5)
    return "it is a pickle, as older torch.save writes them. Pickles may run code when read, so they are "
           "never opened here: load it in Python and save it with safetensors.torch.save_file";
  return "";
}

int64_t dtype_bytes(std::string_view dtype) {
  struct Known {
    std::string_view name;
    int64_t bytes;
  };
  static constexpr std::array<Known, 16> kKnown{{{"BOOL", 1},
                                                 {"U8", 1},
                                                 {"I8", 1},
                                                 {"F8_E5M2", 1},
                                                 {"F8_E4M3", 1},
                                                 {"I16", 2},
                                                 {"U16", 2},
                                                 {"F16", 2},
                                                 {"BF16", 2},
                                                 {"I32", 4},
                                                 {"U32", 4},
                                                 {"F32", 4},
                                                 {"F64", 8},
                                                 {"I64", 8},
                                                 {"U64", 8},
                                                 {"C64", 8}}};
  const auto* found =
      std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& known) { return known.name == dtype; });
  return found == kKnown.end() ? 0 : found->bytes;
}

int64_t checked_numel(const std::vector<int64_t>& shape, const std::string& where) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t numel = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || numel > INT64_MAX / extent)
      throw CheckpointError(where + ": its shape has more elements than can be counted");
    numel *= extent;
  }
  return numel;
}

std::string make_safetensors_header(const std::vector<SafetensorsEntry>& tensors,
                                    const std::map<std::string, std::string>& metadata, int64_t align) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  for (const SafetensorsEntry& one : tensors)
    header[one.name] = {{"dtype", one.dtype}, {"shape", one.shape}, {"data_offsets", {one.begin, one.end}}};
  std::string json = json_text(header, "the header of a safetensors file");
  const size_t unit = static_cast<size_t>(align);
  json.resize((json.size() + 8 + unit - 1) / unit * unit - 8, ' ');
  const uint64_t length = json.size();
  if (length > static_cast<uint64_t>(kMostHeaderBytes))
    throw CheckpointError("the header of a safetensors file with " + std::to_string(tensors.size()) +
                          " tensors would have " + std::to_string(length) + " bytes; readers take at most " +
                          std::to_string(kMostHeaderBytes));
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + json;
}

SafetensorsHeader parse_safetensors_header(std::string_view start, int64_t file_bytes,
                                           const std::string& where) {
  if (file_bytes < 8 || start.size() < 8)
    throw CheckpointError(where + " is too short for a safetensors file");
  const int64_t length = header_length(start);
  if (length > kMostHeaderBytes || length > file_bytes - 8 || length > static_cast<int64_t>(start.size()) - 8)
    throw CheckpointError(where + " is no safetensors file, or damaged: its header would have " +
                          std::to_string(length) + " bytes");
  const Json json = parse_json(start.substr(8, static_cast<size_t>(length)), where, 4);
  const JsonObject object(json, where);
  SafetensorsHeader header{.tensors = {}, .metadata = {}, .bytes = 8 + length};
  for (const auto& [name, value] : json.items()) {
    if (name != kMetadata) {
      header.tensors.push_back(parse_entry(name, value, where));
      continue;
    }
    const JsonObject metadata = object.object(kMetadata);
    for (const auto& [key, text] : value.items()) header.metadata[key] = metadata.text(key);
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t at = 0;
  for (const SafetensorsEntry& one : header.tensors) {
    if (one.begin != at)
      object.fail("tensor '" + printable(one.name) + "' does not begin where the one before it ends");
    at = one.end;
  }
  if (at != file_bytes - header.bytes)
    object.fail("tensors have " + std::to_string(at) + " bytes, the file has " +
                std::to_string(file_bytes - header.bytes) + " for them");
  return header;
}

SafetensorsHeader read_safetensors_header(const OpenFile& file, const std::string& path) {
  const int64_t size = file.size();
  std::string start(static_cast<size_t>(std::min<int64_t>(size, 9)), '\0');
  file.read(std::as_writable_bytes(std::span(start)), 0);
  if (const std::string other = other_format(start); !other.empty())
    throw CheckpointError(path + ": " + other);
  if (start.size() >= 8) {
    const int64_t length = std::min({header_length(start), size - 8, kMostHeaderBytes});
    start.resize(static_cast<size_t>(8 + length));
    file.read(std::as_writable_bytes(std::span(start).subspan(8)), 8);
  }
  return parse_safetensors_header(start, size, path);
}

}  // namespace fsdp::detail
