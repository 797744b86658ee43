// A folder as save_pretrained of transformers writes it: config.json, and weights in one file or several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "files/file_ops.h"
#include "files/hf_layout.h"

namespace fsdp::detail {

inline constexpr const char* kHfConfig = "config.json";
inline constexpr const char* kHfWeights = "model.safetensors";
inline constexpr const char* kHfIndex = "model.safetensors.index.json";

class HfFolder {
 public:
  enum class Config { needed, optional };

  // Reads the config and the header of every file. Throws CheckpointError or IoError; the message says what
  // `path` is instead: weights that are pickled, an index that leads out of the folder, ...
  HfFolder(const FileOps& files, std::string path, Config config = Config::needed);

  const std::string& path() const { return path_; }
  const Json& config() const { return config_; }  // null if there is none
  const std::vector<std::string>& weight_files() const { return names_; }
  const TensorTable& tensors() const { return tensors_; }

  // The position of a tensor. Reading in this order is fastest.
  struct Place {
    size_t file = 0;
    int64_t begin = 0;  // in bytes of the file
    int64_t bytes = 0;

    auto operator<=>(const Place&) const = default;
  };
  const Place& place(const std::string& name) const { return places_.at(name); }
  const std::string& file_of(const std::string& name) const { return file_of_.at(name); }
  // Reads bytes of a tensor, from `offset` on.
  void read(const std::string& name, int64_t offset, std::span<std::byte> into) const;

 private:
  std::vector<std::string> find_weights(const FileOps& files,
                                        std::map<std::string, std::string>& promised) const;
  void add_file(const FileOps& files, const std::string& name);

  std::string path_;
  Json config_;
  std::vector<std::string> names_;
  std::vector<FilePtr> opened_;  // by `names_`
  TensorTable tensors_;
  std::map<std::string, Place> places_;
  std::map<std::string, std::string> file_of_;  // tensor -> name of its file
};

}  // namespace fsdp::detail
