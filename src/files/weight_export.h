// Whole tensors of a checkpoint, as safetensors files in a new folder.
#pragma once

#include <fsdp/checkpoint_files.h>

#include <map>
#include <string>
#include <vector>

#include "files/checkpoint_reader.h"
#include "files/json.h"
#include "files/lora_merge.h"

namespace fsdp::detail {

struct ExportTensor {
  std::string name;  // name in the files
  const SavedTensor* saved = nullptr;
  const LowRankMatrix* added = nullptr;  // null: nothing is added
};

// The dtype in the files: the requested one if the saved one is floating-point. Throws CheckpointError for a
// dtype that is no target of casts.
std::string exported_dtype(const SavedTensor& saved, const ExportOptions& options);

// Writes `folder`, which must not exist: model.safetensors, or several files and their index, and `texts` by
// their file names. `aliases` go into `__metadata__` of the files with their tensors. The folder has another
// name until all is written, so a failure leaves no `folder`.
ConvertedModel export_weights(CheckpointReader& source, const std::vector<ExportTensor>& tensors,
                              const std::map<std::string, std::string>& aliases,
                              const std::map<std::string, Json>& texts, const std::string& folder,
                              const ExportOptions& options);

}  // namespace fsdp::detail
