#include "files/safetensors_folder.h"

#include <fsdp/error.h>

#include <algorithm>
#include <array>

#include "files/hf_folder.h"
#include "files/model_config.h"
#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

constexpr size_t kMostFiles = 10'000;
constexpr const char* kEnding = ".safetensors";

std::vector<std::string> safetensors_in(const FileOps& files, const std::string& path) {
  std::vector<std::string> names;
  if (files.is_folder(path)) names = files.list(path);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(kEnding) || name[0] == '.'; });
  return names;
}

// Reads the headers of files and assembles the tensors in them.
class ForeignTensors {
 public:
  ForeignTensors(const FileOps& files, std::string folder) : files_(files), folder_(std::move(folder)) {
    manifest_.foreign = true;
    manifest_.world = 0;
    manifest_.writer = "safetensors";
  }

  void add_file(const std::string& name) {
    const std::string path = folder_ + "/" + name;
    if (!is_plain_name(name))
      throw CheckpointError(folder_ + ": '" + printable(name) + "' is not the name of a file here");
    const FilePtr file = files_.open(path);
    const SafetensorsHeader header = read_safetensors_header(*file, path);
    if (header.metadata.contains("fsdp_id"))
      throw CheckpointError(folder_ + " is a checkpoint of this library that has lost its " + kManifestName +
                            ". Copy it again, or take another");
    std::string bytes(static_cast<size_t>(header.bytes), '\0');
    file->read(std::as_writable_bytes(std::span(bytes)), 0);
    manifest_.files.push_back({.name = name,
                               .header_bytes = header.bytes,
                               .data_bytes = file->size() - header.bytes,
                               .header = hash128(bytes),
                               .blocks = {}});
    const auto info = header.metadata.find(kShardingInfo);
    const std::string where = path + ", " + kShardingInfo;
    const Json parts = info == header.metadata.end() ? Json() : parse_json(info->second, where, 4);
    for (const SafetensorsEntry& entry : header.tensors) {
      const std::vector<int64_t> start =
          parts.is_null() ? std::vector<int64_t>(entry.shape.size(), 0)
                          : JsonObject(parts, where).object(entry.name).integers("saved_offsets", 0);
      add_box(entry, start, path);
      if (entry.name.starts_with("state.") && entry.name.ends_with(".step")) add_steps(*file, header, entry);
    }
    if (!parts.is_null()) manifest_.writer = "torch.distributed.checkpoint";
    for (const auto& [key, value] : header.metadata) noted_[key] = value;
  }

  Manifest finish() {
    for (auto& [name, tensor] : manifest_.tensors) drop_empty_boxes(tensor, name);
    for (const auto& [alias, name] : noted_)
      if (manifest_.tensors.contains(name) && !manifest_.tensors.contains(alias))
        manifest_.aliases[alias] = name;
    // Such files have moments only of optimizers: options of groups stay as they are.
    if (std::any_of(manifest_.tensors.begin(), manifest_.tensors.end(),
                    [&](const auto& one) { return !manifest_.is_of_model(one.first, one.second); }))
      manifest_.run["optimizer"] = {{"groups", Json::array()}, {"steps_lost", has_steps_ && !has_counts_}};
    manifest_.check(folder_);
    return std::move(manifest_);
  }

 private:
  void add_box(const SafetensorsEntry& entry, const std::vector<int64_t>& start, const std::string& path) {
    const std::string where = path + ", tensor '" + printable(entry.name) + "'";
    const auto [known, fresh] = manifest_.tensors.try_emplace(entry.name);
    SavedTensor& tensor = known->second;
    if (fresh) {
      tensor.dtype = entry.dtype;
      tensor.shape.assign(entry.shape.size(), 0);
    }
    if (tensor.dtype != entry.dtype || tensor.shape.size() != entry.shape.size())
      throw CheckpointError(where + " has another dtype or other dimensions than in another file");
    if (start.size() != entry.shape.size())
      throw CheckpointError(where + ": its 'saved_offsets' have not as many dimensions");
    for (size_t d = 0; d < start.size(); ++d) {
      if (start[d] > INT64_MAX - entry.shape[d]) throw CheckpointError(where + " is too large");
      tensor.shape[d] = std::max(tensor.shape[d], start[d] + entry.shape[d]);
    }
    tensor.boxes.push_back({.file = static_cast<int32_t>(manifest_.files.size()) - 1,
                            .offset = entry.begin,
                            .box = {.start = start, .extent = entry.shape}});
  }

  // PyTorch 2.11 writes scalars as 0 when it consolidates, so the numbers of steps are lost.
  void add_steps(const OpenFile& file, const SafetensorsHeader& header, const SafetensorsEntry& entry) {
    if (entry.end - entry.begin > 8) return;
    std::array<std::byte, 8> value{};
    file.read(std::span(value).first(static_cast<size_t>(entry.end - entry.begin)),
              header.bytes + entry.begin);
    has_steps_ = true;
    has_counts_ |= value != std::array<std::byte, 8>{};
  }

  // Drops boxes without elements, which a rank may write that held no part of a tensor.
  static void drop_empty_boxes(SavedTensor& tensor, const std::string& name) {
    if (checked_numel(tensor.shape, name) == 0) {
      tensor.boxes.resize(1);
      tensor.boxes[0].box = {.start = std::vector<int64_t>(tensor.shape.size(), 0), .extent = tensor.shape};
      return;
    }
    std::erase_if(tensor.boxes, [](const SavedBox& saved) { return saved.box.numel() == 0; });
  }

  const FileOps& files_;
  std::string folder_;
  Manifest manifest_;
  std::map<std::string, std::string> noted_;     // `__metadata__` of all files
  bool has_steps_ = false, has_counts_ = false;  // there are numbers of steps, and some that are not 0
};

bool is_hf_folder(const FileOps& files, const std::string& path) {
  return files.exists(path + "/" + kHfConfig) &&
         (files.exists(path + "/" + kHfWeights) || files.exists(path + "/" + kHfIndex));
}

}  // namespace

bool is_foreign_folder(const FileOps& files, const std::string& path) {
  if (files.exists(path + "/" + kManifestName) || files.exists(path + "/latest")) return false;
  return is_hf_folder(files, path) || !safetensors_in(files, path).empty();
}

Manifest foreign_manifest(const FileOps& files, const std::string& path) {
  ForeignTensors tensors(files, path);
  Json config;
  std::vector<std::string> names;
  if (is_hf_folder(files, path) || files.exists(path + "/" + kHfIndex)) {
    const HfFolder folder(files, path, HfFolder::Config::optional);
    config = folder.config();
    names = folder.weight_files();
  } else {
    names = safetensors_in(files, path);
  }
  if (names.size() > kMostFiles)
    throw CheckpointError(path + " has " + std::to_string(names.size()) + " safetensors files, at most " +
                          std::to_string(kMostFiles) + " are expected");
  for (const std::string& name : names) tensors.add_file(name);
  Manifest manifest = tensors.finish();
  if (!config.is_null()) manifest.run[kModelConfigKey] = std::move(config);
  return manifest;
}

}  // namespace fsdp::detail
