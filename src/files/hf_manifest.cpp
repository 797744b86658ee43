#include "files/hf_manifest.h"

#include <array>
#include <string_view>

#include "files/hf_folder.h"
#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

SavedFile described(const FileOps& files, const std::string& folder, const std::string& name) {
  const FilePtr file = files.open(folder + "/" + name);
  const SafetensorsHeader header = read_safetensors_header(*file, folder + "/" + name);
  std::string bytes(static_cast<size_t>(header.bytes), '\0');
  file->read(std::as_writable_bytes(std::span(bytes)), 0);
  return {.name = name,
          .header_bytes = header.bytes,
          .data_bytes = file->size() - header.bytes,
          .header = hash128(bytes),
          .blocks = {}};
}

}  // namespace

bool is_hf_folder(const FileOps& files, const std::string& path) {
  return files.exists(path + "/" + kHfConfig) &&
         (files.exists(path + "/" + kHfWeights) || files.exists(path + "/" + kHfIndex));
}

Manifest hf_manifest(const FileOps& files, const std::string& path) {
  const HfFolder folder(files, path);
  Manifest manifest;
  manifest.foreign = true;
  manifest.world = 0;
  manifest.run = {{"model_config", folder.config()}};
  std::map<std::string, int32_t> index;
  for (const auto& [name, kind] : folder.tensors()) {
    const std::string& file = folder.file_of(name);
    const auto [known, fresh] = index.try_emplace(file, static_cast<int32_t>(manifest.files.size()));
    if (fresh) manifest.files.push_back(described(files, path, file));
    const int64_t header = manifest.files[static_cast<size_t>(known->second)].header_bytes;
    manifest.tensors[name] = {
        .dtype = kind.dtype,
        .shape = kind.shape,
        .order = {},
        .real_pairs = false,
        .boxes = {{.file = known->second,
                   .offset = folder.place(name).begin - header,
                   .box = {.start = std::vector<int64_t>(kind.shape.size(), 0), .extent = kind.shape}}}};
  }
  manifest.check(path);
  return manifest;
}

std::string hf_name(const Manifest& manifest, const std::string& name) {
  if (manifest.tensors.contains(name)) return name;
  for (const std::string_view prefix : {"transformer.", "model."})
    if (name.starts_with(prefix) && manifest.tensors.contains(name.substr(prefix.size())))
      return name.substr(prefix.size());
  return name;
}

bool is_computed_today(const std::string& name) {
  constexpr std::array<std::string_view, 3> kSuffixes{".attn.bias", ".attn.masked_bias",
                                                      ".rotary_emb.inv_freq"};
  for (const std::string_view suffix : kSuffixes)
    if (name.ends_with(suffix)) return true;
  return false;
}

}  // namespace fsdp::detail
