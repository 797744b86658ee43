// Compares the config.json of a Hugging Face folder with the model that its weights are loaded into.
#pragma once

#include <string>
#include <vector>

#include "files/manifest.h"

namespace fsdp::detail {

// Throws CheckpointError, which begins with `where`, for a config.json in manifest.run that
// - contradicts `said`, RunState::model_config, in values that shapes do not show: heads, the epsilon of
//   norms, rotary frequencies, activations;
// - import_hf refuses, if the module has the names of GPT-2 or Llama of models/. A module with other names
//   may compute anything.
// Compares nothing if there is no config.json. `whole`: all of the model is to be loaded, so the config must
// also fit the shapes in the folder.
void check_hf_config(const Manifest& manifest, const std::vector<std::string>& module_names,
                     const std::string& said, bool whole, const std::string& where);

}  // namespace fsdp::detail
