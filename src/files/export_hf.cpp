#include <fsdp/checkpoint_files.h>
#include <fsdp/error.h>

#include <algorithm>

#include "files/checkpoint_reader.h"
#include "files/hf_folder.h"
#include "files/model_config.h"
#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

// The values given, over those of the checkpoint.
Json merged_config(const CheckpointReader& source, const std::string& given) {
  const Json& run = source.manifest().run;
  Json config = Json::object();
  if (run.contains(kModelConfigKey)) config = run.at(kModelConfigKey);
  const std::string where = source.folder() + ", run value '" + kModelConfigKey + "'";
  if (!config.is_object()) throw CheckpointError(where + " is not an object");
  if (!given.empty()) {
    const Json more = parse_json(given, "the config given");
    if (!more.is_object()) throw CheckpointError("the config given is not a JSON object");
    config.update(more);
  }
  if (config.empty())
    throw CheckpointError(
        source.folder() + " has no run value '" + kModelConfigKey +
        "', and no config was given. Give one (--config FILE, HfExportOptions::config) with "
        "what shapes do not say: model_type (gpt2 or llama), the heads, the epsilon of its "
        "norms, for llama also max_position_embeddings");
  return config;
}

TensorTable table_of(const Manifest& manifest) {
  TensorTable table;
  for (const auto& [name, tensor] : manifest.tensors)
    if (manifest.is_of_model(tensor) && !name.starts_with("state."))  // of an optimizer
      table[name] = {.dtype = tensor.dtype, .shape = tensor.shape};
  return table;
}

HfLayout exported_layout(const Json& config, const TensorTable& table, const std::string& where) {
  HfLayout layout = hf_layout(config, table, where);
  if (layout.others.empty()) return layout;
  const std::string& name = layout.others.front();
  if (layout.aliases.contains(name))
    throw CheckpointError(where + ": its config says tie_word_embeddings, but '" + name +
                          "' is a tensor of its own. Give a config with tie_word_embeddings false");
  throw CheckpointError(where + ": tensor '" + name + "' is no part of a " + layout.model_type +
                        " language model of models/; transformers would not load it");
}

// "F32" as transformers names it.
std::string torch_dtype(const std::string& dtype) {
  if (dtype == "BF16") return "bfloat16";
  return dtype == "F16" ? "float16" : dtype == "F64" ? "float64" : "float32";
}

// Newer versions of transformers read `dtype`, older ones `torch_dtype`, and cast to it.
void name_dtypes(Json& config, const HfLayout& layout, const TensorTable& table) {
  config["architectures"] = {layout.model_type == "gpt2" ? "GPT2LMHeadModel" : "LlamaForCausalLM"};
  config["dtype"] = config["torch_dtype"] = torch_dtype(table.at(layout.tensors.front().source).dtype);
}

struct HfFile {
  std::string name;
  std::vector<const HfTensor*> tensors;
  int64_t bytes = 0;
};

std::vector<HfFile> split_files(const HfLayout& layout, const Manifest& manifest, int64_t most) {
  std::vector<HfFile> parts(1);
  for (const HfTensor& tensor : layout.tensors) {
    const int64_t bytes =
        checked_numel(tensor.shape, tensor.name) * dtype_bytes(manifest.tensors.at(tensor.source).dtype);
    if (!parts.back().tensors.empty() && parts.back().bytes > most - bytes) parts.emplace_back();
    parts.back().tensors.push_back(&tensor);
    parts.back().bytes += bytes;
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
class HfWriter {
 public:
  HfWriter(CheckpointReader& source, FileOps& files, std::string folder, const ByteProgress& progress,
           int64_t total)
      : source_(source), files_(files), folder_(std::move(folder)), progress_(progress), total_(total) {}

  void weights(const HfFile& part) {
    std::vector<SafetensorsEntry> entries;
    int64_t at = 0;
    for (const HfTensor* tensor : part.tensors) {
      const SavedTensor& saved = source_.manifest().tensors.at(tensor->source);
      const int64_t end = at + SavedTensorReader(source_, saved).bytes();
      entries.push_back(
          {.name = tensor->name, .dtype = saved.dtype, .shape = saved.shape, .begin = at, .end = end});
      at = end;
    }
    const std::string header = make_safetensors_header(entries, {{"format", "pt"}});
    const FilePtr file = files_.create(folder_ + "/" + part.name);
    file->write(std::as_bytes(std::span(header)), 0);
    at = static_cast<int64_t>(header.size());
    for (const HfTensor* tensor : part.tensors) {
      SavedTensorReader reader(source_, source_.manifest().tensors.at(tensor->source));
      reader.read(0, reader.bytes(), [&](std::span<const std::byte> piece) {
        file->write(piece, at);
        at += static_cast<int64_t>(piece.size());
        done_ += static_cast<int64_t>(piece.size());
        if (progress_) progress_(done_, total_);
      });
    }
    file->sync();
    file->close();
  }

  void index(const std::vector<HfFile>& parts) {
    Json map = Json::object();
    for (const HfFile& part : parts)
      for (const HfTensor* tensor : part.tensors) map[tensor->name] = part.name;
    const Json json = {{"metadata", {{"total_size", total_}}}, {"weight_map", std::move(map)}};
    text(kHfIndex, json);
  }

  void text(const char* name, const Json& json) {
    write_text(files_, folder_ + "/" + name, json.dump(2) + "\n");
  }

 private:
  CheckpointReader& source_;
  FileOps& files_;
  std::string folder_;
  const ByteProgress& progress_;
  int64_t total_;
  int64_t done_ = 0;
};

constexpr const char* kPart = ".part";

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

}  // namespace fsdp::detail

namespace fsdp {

ConvertedModel export_hf(const std::string& path, const std::string& folder, const HfExportOptions& options) {
  using namespace detail;
  FileOps& files = posix_files();
  CheckpointReader source(files, path);
  const TensorTable table = table_of(source.manifest());
  Json config = complete_hf_config(merged_config(source, options.config), table, source.folder());
  const HfLayout layout = exported_layout(config, table, source.folder());
  name_dtypes(config, layout, table);
  const std::vector<HfFile> parts = split_files(layout, source.manifest(), options.max_file_bytes);
  ConvertedModel made{.folder = folder,
                      .model_type = layout.model_type,
                      .tensors = static_cast<int64_t>(layout.tensors.size()),
                      .bytes = 0,
                      .files = {}};
  for (const HfFile& part : parts) {
    made.bytes += part.bytes;
    made.files.push_back(part.name);
  }

  // Written under another name, so that a folder of the name asked for is whole.
  const NewFolder target = new_folder(files, folder);
  const std::string begun = target.path + kPart;
  files.make_folders(target.parent);
  files.make_folder(begun);
  try {
    HfWriter writer(source, files, begun, options.progress, made.bytes);
    for (const HfFile& part : parts) writer.weights(part);
    if (parts.size() > 1) writer.index(parts);
    writer.text(kHfConfig, config);
    files.sync_folder(begun);
    files.rename(begun, target.path);
    files.sync_folder(target.parent);
  } catch (...) {
    remove_quietly(files, begun);
    throw;
  }
  return made;
}

}  // namespace fsdp
