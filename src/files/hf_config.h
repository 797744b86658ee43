// The values of a config.json that determine the tensors of a model and its computation.
#pragma once

#include <cstdint>
#include <string>

#include "files/json.h"

namespace fsdp::detail {

struct HfSizes {
  std::string model_type;
  int64_t vocabulary = 0;
  int64_t positions = 0;
  int64_t dim = 0;
  int64_t inner = 0;  // of the MLP
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  bool tied = false;
};

// "gpt2" or "llama". Throws CheckpointError, which begins with `where`, for another model.
std::string hf_model_type(const Json& config, const std::string& where);

// Reads a complete config (complete_hf_config) with at most `most_layers`. Throws CheckpointError, which
// begins with `where`, if a value is missing, impossible or not computed by models/.
HfSizes read_hf_config(const Json& config, int64_t most_layers, const std::string& where);

}  // namespace fsdp::detail
