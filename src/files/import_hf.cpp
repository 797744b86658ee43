#include <fsdp/checkpoint_files.h>
#include <fsdp/error.h>
#include <fsdp/version.h>

#include <algorithm>

#include "files/block_file.h"
#include "files/hf_folder.h"
#include "files/model_config.h"
#include "files/run_folder.h"
#include "files/safetensors.h"

namespace fsdp::detail {

namespace {

constexpr const char* kWeightsFile = "shard-00000-model-00001-of-00001.safetensors";

// The model in `source`, in the order in which its files can be read from front to back.
HfLayout matched_model(const HfFolder& source, Json& config) {
  const std::string where = source.path();
  config = read_hf_defaults(std::move(config), source.tensors(), where);
  HfLayout layout = hf_layout(config, source.tensors(), where);
  std::erase_if(layout.others, [&](const std::string& name) { return layout.aliases.contains(name); });
  if (!layout.others.empty())
    throw CheckpointError(where + ": tensor '" + layout.others.front().substr(0, 100) + "' is no part of a " +
                          layout.model_type + " language model. Save the model without it");
  std::sort(layout.tensors.begin(), layout.tensors.end(), [&](const HfTensor& a, const HfTensor& b) {
    return source.place(a.source) < source.place(b.source);
  });
  return layout;
}

struct PlannedFile {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, SavedTensor> tensors;
  int64_t bytes = 0;
};

PlannedFile plan_weights(const HfFolder& source, const HfLayout& layout) {
  PlannedFile plan;
  for (const HfTensor& tensor : layout.tensors) {
    const std::string& dtype = source.tensors().at(tensor.source).dtype;
    const int64_t end = plan.bytes + source.place(tensor.source).bytes;
    plan.entries.push_back(
        {.name = tensor.name, .dtype = dtype, .shape = tensor.shape, .begin = plan.bytes, .end = end});
    const Box whole{.start = std::vector<int64_t>(tensor.shape.size(), 0), .extent = tensor.shape};
    plan.tensors[tensor.name] = {.dtype = dtype,
                                 .shape = tensor.shape,
                                 .order = {},
                                 .real_pairs = false,
                                 .boxes = {{.file = 0, .offset = plan.bytes, .box = whole}}};
    plan.bytes = end;
  }
  return plan;
}

SavedFile copy_weights(FileOps& files, const HfFolder& source, const HfLayout& layout,
                       const PlannedFile& plan, const std::string& folder, const Manifest& manifest,
                       const ByteProgress& progress) {
  const std::map<std::string, std::string> metadata{
      {"format", "pt"}, {"fsdp_id", manifest.id}, {"fsdp_step", std::to_string(manifest.step)}};
  BlockWriter writer(files, folder, kWeightsFile, make_safetensors_header(plan.entries, metadata));
  std::vector<std::byte> piece;
  int64_t done = 0;
  for (const HfTensor& tensor : layout.tensors) {
    const int64_t bytes = source.place(tensor.source).bytes;
    for (int64_t at = 0; at < bytes; at += kBlockBytes) {
      piece.resize(static_cast<size_t>(std::min(kBlockBytes, bytes - at)));
      source.read(tensor.source, at, piece);
      writer.append(piece);
      done += static_cast<int64_t>(piece.size());
      if (progress) progress(done, plan.bytes);
    }
  }
  return writer.finish();
}

}  // namespace

}  // namespace fsdp::detail

namespace fsdp {

ConvertedModel import_hf(const std::string& folder, const std::string& run_folder,
                         const HfImportOptions& options) {
  using namespace detail;
  FileOps& files = posix_files();
  const HfFolder source(files, folder);
  Json config = source.config();
  const HfLayout layout = matched_model(source, config);
  PlannedFile plan = plan_weights(source, layout);

  RunFolder run(files, run_folder);
  if (!run.entries().empty())
    throw CheckpointError(run_folder + " holds checkpoints already: " + run.entries().back().name +
                          " is the last. Import into a new folder");
  const auto lock = run.lock();
  if (!lock) throw IoError("write to", run_folder, 0, "another process saves there. Name another folder");
  Manifest manifest{.id = new_save_id(),
                    .step = options.step,
                    .world = 1,
                    .writer = std::string("fsdp.cpp ") + version(),
                    .files = {},
                    .tensors = std::move(plan.tensors),
                    .aliases = layout.aliases,
                    .run = {{kModelConfigKey, std::move(config)}}};
  const std::string begun = run.begin(options.step, manifest.id);
  ConvertedModel made{.folder = {},
                      .model_type = layout.model_type,
                      .tensors = static_cast<int64_t>(layout.tensors.size()),
                      .bytes = plan.bytes,
                      .files = {kWeightsFile}};
  try {
    manifest.files.push_back(copy_weights(files, source, layout, plan, begun, manifest, options.progress));
    manifest.check(folder);
    made.folder = run_folder + "/" + run.commit(begun, options.step, manifest.to_text());
  } catch (...) {
    remove_quietly(files, begun);
    throw;
  }
  return made;
}

}  // namespace fsdp
