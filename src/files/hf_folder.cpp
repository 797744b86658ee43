#include "files/hf_folder.h"

#include <fsdp/error.h>

#include <algorithm>
#include <set>

#include "files/manifest.h"
#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

constexpr int64_t kMostConfigBytes = int64_t{1} << 20;
constexpr int64_t kMostIndexBytes = int64_t{64} << 20;
constexpr size_t kMostWeightFiles = 1000;

[[noreturn]] void refuse_without_weights(const FileOps& files, const std::string& path) {
  for (const std::string& name : files.list(path))
    for (const char* ending : {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf"})
      if (name.ends_with(ending))
        throw CheckpointError(path + " has no " + kHfWeights + ", but " + name.substr(0, 100) +
                              ". Only safetensors are opened, since other files may run code when read: load "
                              "it in Python with from_pretrained and save it with save_pretrained");
  throw CheckpointError(path + " has neither " + kHfWeights + " nor " + kHfIndex +
                        "; a folder that save_pretrained wrote has one of them");
}

void refuse_no_folder(const FileOps& files, const std::string& path) {
  if (!files.exists(path)) throw CheckpointError("no Hugging Face folder: " + path + " does not exist");
  if (files.exists(path + "/" + kHfConfig)) return;
  if (files.exists(path + "/" + kManifestName) || files.exists(path + "/latest"))
    throw CheckpointError(path + " is a checkpoint of this library already, no Hugging Face folder");
  throw CheckpointError(path + " is no Hugging Face folder: it has no " + kHfConfig +
                        ". Give a folder that save_pretrained wrote");
}

}  // namespace

HfFolder::HfFolder(const FileOps& files, std::string path, Config config) : path_(std::move(path)) {
  if (config == Config::needed) refuse_no_folder(files, path_);
  const std::string file = path_ + "/" + kHfConfig;
  if (files.exists(file)) config_ = parse_json(read_text(files, file, kMostConfigBytes), file);
  std::map<std::string, std::string> promised;
  names_ = find_weights(files, promised);
  for (const std::string& name : names_) add_file(files, name);
  for (const auto& [tensor, file] : promised) {
    const auto found = file_of_.find(tensor);
    if (found == file_of_.end() || found->second != file)
      throw CheckpointError(path_ + "/" + kHfIndex + " says that tensor '" + tensor.substr(0, 100) +
                            "' lies in " + file + ", but it does not. Download or save the model again");
  }
}

// If there are both, transformers takes the single file.
std::vector<std::string> HfFolder::find_weights(const FileOps& files,
                                                std::map<std::string, std::string>& promised) const {
  if (files.exists(path_ + "/" + kHfWeights)) return {kHfWeights};
  const std::string path = path_ + "/" + kHfIndex;
  if (!files.exists(path)) refuse_without_weights(files, path_);
  const Json json = parse_json(read_text(files, path, kMostIndexBytes), path);
  const JsonObject map = JsonObject(json, path).object("weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, value] : map.json().items()) {
    const std::string file = map.text(tensor);
    if (!is_plain_name(file) || !file.ends_with(".safetensors"))
      map.fail("'" + file.substr(0, 100) + "' is not the name of a safetensors file in this folder");
    names.insert(file);
    promised[tensor] = file;
  }
  if (names.empty() || names.size() > kMostWeightFiles)
    map.fail(std::to_string(names.size()) + " files, 1 to " + std::to_string(kMostWeightFiles) +
             " are expected");
  return {names.begin(), names.end()};
}

void HfFolder::add_file(const FileOps& files, const std::string& name) {
  const std::string path = path_ + "/" + name;
  if (!files.exists(path))
    throw CheckpointError(path_ + " is not whole: its index names " + name +
                          ", which is missing. Download or save the model again");
  FilePtr file = files.open(path);
  const SafetensorsHeader header = read_safetensors_header(*file, path);
  for (const SafetensorsEntry& one : header.tensors) {
    if (const auto [known, fresh] = file_of_.try_emplace(one.name, name); !fresh)
      throw CheckpointError(path_ + ": tensor '" + one.name.substr(0, 100) + "' lies in " + known->second +
                            " and in " + name);
    tensors_[one.name] = {.dtype = one.dtype, .shape = one.shape};
    places_[one.name] = {
        .file = opened_.size(), .begin = header.bytes + one.begin, .bytes = one.end - one.begin};
  }
  opened_.push_back(std::move(file));
}

void HfFolder::read(const std::string& name, int64_t offset, std::span<std::byte> into) const {
  const Place& at = places_.at(name);
  opened_[at.file]->read(into, at.begin + offset);
}

}  // namespace fsdp::detail
