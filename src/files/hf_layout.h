// The tensors that a Hugging Face model has, and values its config must have. Pure: names and shapes only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "files/json.h"

namespace fsdp::detail {

// Note [Hugging Face layout]
// GPT-2 and Llama of models/ have the names, shapes and element order of transformers: GPT-2's Conv1D weights
// are [in, out], and the rows of Llama's q_proj and k_proj hold the two halves of a head, as its rotary
// embedding expects them. So tensors are copied byte by byte, and only the tables differ:
// - files of a base model (GPT2Model) lack the prefix "transformer." or "model.";
// - a tied head is stored once, under the embedding's name (some writers keep the head's instead);
// - older files hold buffers, masks and frequencies, which are computed today.
// A config that asks for features that models/ lacks (another activation, scaled rotary frequencies, ...) is
// refused: its weights would load, but compute something else.

inline constexpr const char* kGpt2Embedding = "transformer.wte.weight";
inline constexpr const char* kLlamaEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kHfHead = "lm_head.weight";

struct TensorKind {
  std::string dtype;  // safetensors' name
  std::vector<int64_t> shape;

  bool operator==(const TensorKind&) const = default;
};
using TensorTable = std::map<std::string, TensorKind>;

struct HfTensor {
  std::string name;    // in models/ and in transformers
  std::string source;  // in the table it was found in
  std::vector<int64_t> shape;
};

struct HfLayout {
  std::string model_type;                      // "gpt2", "llama"
  std::vector<HfTensor> tensors;               // in the order of the model
  std::map<std::string, std::string> aliases;  // the name of a tied head -> the embedding's
  std::vector<std::string> others;             // names of the table that are no part of the model
};

// Returns `config` with all missing values that the shapes in `found` determine, and with `rope_theta` at the
// places where older and newer versions of transformers look for it. Existing values stay. Throws
// CheckpointError, which begins with `where`, for a model that models/ does not have.
Json complete_hf_config(Json config, const TensorTable& found, const std::string& where);

// The same for a config.json of transformers, with the defaults of transformers.
Json read_hf_defaults(Json config, const TensorTable& found, const std::string& where);

// Finds the tensors of a complete config in a table. Throws CheckpointError, which begins with `where`, if a
// value is missing or not supported by models/, or if a tensor is missing, has another shape or is not
// floating-point.
HfLayout hf_layout(const Json& config, const TensorTable& found, const std::string& where);

}  // namespace fsdp::detail
