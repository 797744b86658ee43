#include "files/weight_export.h"

#include <fsdp/error.h>

#include <algorithm>
#include <cstring>

#include "files/cast_elements.h"
#include "files/hf_folder.h"
#include "files/model_config.h"
#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

constexpr const char* kPart = ".part";

struct WeightFile {
  std::string name;
  std::vector<SafetensorsEntry> entries;
  std::vector<const ExportTensor*> tensors;  // of each entry
  int64_t bytes = 0;
};

std::vector<WeightFile> split_files(const std::vector<ExportTensor>& tensors, const ExportOptions& options) {
  std::vector<WeightFile> parts(1);
  for (const ExportTensor& tensor : tensors) {
    const std::string dtype = exported_dtype(*tensor.saved, options);
    const int64_t numel = checked_numel(tensor.saved->shape, tensor.name);
    if (numel > INT64_MAX / dtype_bytes(dtype)) throw CheckpointError("'" + tensor.name + "' is too large");
    const int64_t bytes = numel * dtype_bytes(dtype);
    if (!parts.back().entries.empty() && parts.back().bytes > options.max_file_bytes - bytes)
      parts.emplace_back();
    WeightFile& part = parts.back();
    part.entries.push_back({.name = tensor.name,
                            .dtype = dtype,
                            .shape = tensor.saved->shape,
                            .begin = part.bytes,
                            .end = part.bytes + bytes});
    part.tensors.push_back(&tensor);
    part.bytes += bytes;
  }
  const auto digits = [](size_t number) {
    const std::string text = std::to_string(number);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  for (size_t i = 0; i < parts.size(); ++i)
    parts[i].name = parts.size() == 1
                        ? kHfWeights
                        : "model-" + digits(i + 1) + "-of-" + digits(parts.size()) + ".safetensors";
  return parts;
}

// Writes files of one export, and counts what it wrote.
class WeightWriter {
 public:
  WeightWriter(CheckpointReader& source, FileOps& files, std::string folder, const ByteProgress& progress,
               int64_t total)
      : source_(source), files_(files), folder_(std::move(folder)), progress_(progress), total_(total) {}

  void weights(const WeightFile& part, const std::map<std::string, std::string>& aliases) {
    std::map<std::string, std::string> metadata{{"format", "pt"}};
    for (const auto& [alias, name] : aliases)
      if (std::ranges::find(part.entries, name, &SafetensorsEntry::name) != part.entries.end())
        metadata.emplace(alias, name);
    const std::string header = make_safetensors_header(part.entries, metadata);
    const FilePtr file = files_.create(folder_ + "/" + part.name);
    file->write(std::as_bytes(std::span(header)), 0);
    at_ = static_cast<int64_t>(header.size());
    for (size_t i = 0; i < part.entries.size(); ++i) tensor(*file, part.entries[i], *part.tensors[i]);
    file->sync();
    file->close();
  }

  void index(const std::vector<WeightFile>& parts) {
    Json map = Json::object();
    for (const WeightFile& part : parts)
      for (const SafetensorsEntry& entry : part.entries) map[entry.name] = part.name;
    text(kHfIndex, {{"metadata", {{"total_size", total_}}}, {"weight_map", std::move(map)}});
  }

  void text(const std::string& name, const Json& json) {
    write_text(files_, folder_ + "/" + name, json.dump(2) + "\n");
  }

 private:
  void tensor(OpenFile& file, const SafetensorsEntry& entry, const ExportTensor& from) {
    const std::string& dtype = from.saved->dtype;
    SavedTensorReader reader(source_, *from.saved);
    for (int64_t begin = 0; begin < reader.bytes(); begin += kBlockBytes) {
      piece_.clear();
      reader.read(begin, std::min(reader.bytes(), begin + kBlockBytes), [&](std::span<const std::byte> more) {
        piece_.insert(piece_.end(), more.begin(), more.end());
      });
      if (from.added != nullptr) {
        add(*from.added, dtype, begin / dtype_bytes(dtype));
        put(file, as_exported(entry, "F64"));
      } else {
        put(file, entry.dtype == dtype ? piece_ : as_exported(entry, dtype));
      }
    }
  }

  // Makes the piece F64, and adds the elements of `matrix` from number `first` on.
  void add(const LowRankMatrix& matrix, const std::string& dtype, int64_t first) {
    cast_elements(dtype, piece_, "F64", cast_);
    values_.resize(cast_.size() / sizeof(double));
    std::memcpy(values_.data(), cast_.data(), cast_.size());
    matrix.add_to(values_, first);
    piece_.resize(cast_.size());
    std::memcpy(piece_.data(), values_.data(), piece_.size());
  }

  const std::vector<std::byte>& as_exported(const SafetensorsEntry& entry, const std::string& dtype) {
    const auto lost = cast_elements(dtype, piece_, entry.dtype, cast_);
    if (lost)
      throw CheckpointError(source_.folder() + ": '" + printable(entry.name) + "' has a value of " +
                            std::to_string(*lost) + ", which " + entry.dtype +
                            " cannot hold. Export as BF16 or F32");
    return cast_;
  }

  void put(OpenFile& file, const std::vector<std::byte>& bytes) {
    file.write(bytes, at_);
    at_ += static_cast<int64_t>(bytes.size());
    done_ += static_cast<int64_t>(bytes.size());
    if (progress_) progress_(done_, total_);
  }

  CheckpointReader& source_;
  FileOps& files_;
  std::string folder_;
  const ByteProgress& progress_;
  int64_t total_;
  int64_t done_ = 0;
  int64_t at_ = 0;  // position in the file
  std::vector<std::byte> piece_, cast_;
  std::vector<double> values_;
};

struct NewFolder {
  std::string path, parent;
};

NewFolder new_folder(const FileOps& files, std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (files.exists(path)) throw IoError("write to", path, 0, "it exists already. Name a new folder");
  if (files.exists(path + kPart))
    throw IoError("write to", path + kPart, 0,
                  "it exists: an export that was stopped left it, or one is at work. Delete it, or name "
                  "another folder");
  const size_t slash = path.find_last_of('/');
  std::string parent = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  return {.path = std::move(path), .parent = std::move(parent)};
}

}  // namespace

std::string exported_dtype(const SavedTensor& saved, const ExportOptions& options) {
  if (options.dtype.empty() || saved.real_pairs || !is_castable(saved.dtype)) return saved.dtype;
  if (!is_castable(options.dtype))
    throw CheckpointError("weights are exported as F32, BF16, F16 or F64, not as '" +
                          printable(options.dtype) + "'");
  return options.dtype;
}

ConvertedModel export_weights(CheckpointReader& source, const std::vector<ExportTensor>& tensors,
                              const std::map<std::string, std::string>& aliases,
                              const std::map<std::string, Json>& texts, const std::string& folder,
                              const ExportOptions& options) {
  FileOps& files = posix_files();
  const std::vector<WeightFile> parts = split_files(tensors, options);
  ConvertedModel made{.folder = folder,
                      .model_type = {},
                      .tensors = static_cast<int64_t>(tensors.size()),
                      .bytes = 0,
                      .files = {}};
  for (const WeightFile& part : parts) {
    made.bytes += part.bytes;
    made.files.push_back(part.name);
  }
  const NewFolder target = new_folder(files, folder);
  const std::string begun = target.path + kPart;
  files.make_folders(target.parent);
  files.make_folder(begun);
  try {
    WeightWriter writer(source, files, begun, options.progress, made.bytes);
    for (const WeightFile& part : parts) writer.weights(part, aliases);
    if (parts.size() > 1) writer.index(parts);
    for (const auto& [name, json] : texts) writer.text(name, json);
    files.sync_folder(begun);
    files.rename(begun, target.path);
    files.sync_folder(target.parent);
  } catch (...) {
    remove_quietly(files, begun);
    throw;
  }
  return made;
}

}  // namespace fsdp::detail
