#include "files/hf_layout.h"

#include <fsdp/error.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "files/hf_config.h"
#include "files/hf_names.h"

namespace fsdp::detail {

namespace {

struct Family {
  std::string prefix;     // of a base model's tensors
  std::string embedding;  // with the prefix
};

Family family_of(const std::string& model_type) {
  if (model_type == "gpt2") return {.prefix = "transformer.", .embedding = kGpt2Embedding};
  return {.prefix = "model.", .embedding = kLlamaEmbedding};
}

void add_tensor(std::vector<HfTensor>& tensors, std::string name, std::vector<int64_t> shape) {
  tensors.push_back({.name = std::move(name), .source = {}, .shape = std::move(shape)});
}

std::vector<HfTensor> gpt2_tensors(const HfSizes& size) {
  const int64_t dim = size.dim, inner = size.inner;
  std::vector<HfTensor> all;
  const auto both = [&](const std::string& name, std::vector<int64_t> weight, int64_t bias) {
    add_tensor(all, name + ".weight", std::move(weight));
    add_tensor(all, name + ".bias", {bias});
  };
  add_tensor(all, kGpt2Embedding, {size.vocabulary, dim});
  add_tensor(all, "transformer.wpe.weight", {size.positions, dim});
  for (int64_t i = 0; i < size.layers; ++i) {
    const std::string block = "transformer.h." + std::to_string(i);
    both(block + ".ln_1", {dim}, dim);
    both(block + ".attn.c_attn", {dim, 3 * dim}, 3 * dim);
    both(block + ".attn.c_proj", {dim, dim}, dim);
    both(block + ".ln_2", {dim}, dim);
    both(block + ".mlp.c_fc", {dim, inner}, inner);
    both(block + ".mlp.c_proj", {inner, dim}, dim);
  }
  both("transformer.ln_f", {dim}, dim);
  return all;
}

std::vector<HfTensor> llama_tensors(const HfSizes& size) {
  const int64_t dim = size.dim, inner = size.inner, kv = dim / size.heads * size.kv_heads;
  std::vector<HfTensor> all;
  add_tensor(all, kLlamaEmbedding, {size.vocabulary, dim});
  for (int64_t i = 0; i < size.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    add_tensor(all, layer + ".self_attn.q_proj.weight", {dim, dim});
    add_tensor(all, layer + ".self_attn.k_proj.weight", {kv, dim});
    add_tensor(all, layer + ".self_attn.v_proj.weight", {kv, dim});
    add_tensor(all, layer + ".self_attn.o_proj.weight", {dim, dim});
    add_tensor(all, layer + ".mlp.gate_proj.weight", {inner, dim});
    add_tensor(all, layer + ".mlp.up_proj.weight", {inner, dim});
    add_tensor(all, layer + ".mlp.down_proj.weight", {dim, inner});
    add_tensor(all, layer + ".input_layernorm.weight", {dim});
    add_tensor(all, layer + ".post_attention_layernorm.weight", {dim});
  }
  add_tensor(all, "model.norm.weight", {dim});
  return all;
}

std::string listed(const std::vector<int64_t>& shape) { return Json(shape).dump(); }

void check_kind(const HfTensor& tensor, const TensorKind& kind, const std::string& where) {
  const std::string which = where + ": tensor '" + tensor.source + "'";
  if (kind.shape != tensor.shape)
    throw CheckpointError(which + " has the shape " + listed(kind.shape) + "; its config says " +
                          listed(tensor.shape));
  static constexpr std::array<std::string_view, 4> kFloating{"F32", "BF16", "F16", "F64"};
  if (std::find(kFloating.begin(), kFloating.end(), kind.dtype) == kFloating.end())
    throw CheckpointError(which + " has the dtype " + kind.dtype +
                          "; F32, BF16, F16 or F64 is expected. Save it without quantization");
}

void find_tensors(HfLayout& layout, const Family& family, const TensorTable& found,
                  const std::string& where) {
  const bool bare = std::none_of(found.begin(), found.end(),
                                 [&](const auto& one) { return one.first.starts_with(family.prefix); });
  std::vector<std::string> missing;
  for (HfTensor& tensor : layout.tensors) {
    const bool shorter = bare && tensor.name.starts_with(family.prefix);
    tensor.source = shorter ? tensor.name.substr(family.prefix.size()) : tensor.name;
    const bool as_head = tensor.name == family.embedding && !layout.aliases.empty() &&
                         !found.contains(tensor.source) && found.contains(kHfHead);
    if (as_head) tensor.source = kHfHead;
    const auto at = found.find(tensor.source);
    if (at == found.end())
      missing.push_back(tensor.source);
    else
      check_kind(tensor, at->second, where);
  }
  if (!missing.empty())
    throw CheckpointError(
        where + ": tensor '" + missing.front() + "' is missing" +
        (missing.size() > 1 ? ", and " + std::to_string(missing.size() - 1) + " more" : "") +
        "; its config says a " + layout.model_type + " of " + std::to_string(layout.tensors.size()) +
        " tensors");
}

}  // namespace

HfLayout hf_layout(const Json& config, const TensorTable& found, const std::string& where) {
  const HfSizes size = read_hf_config(config, static_cast<int64_t>(found.size()), where);
  const Family family = family_of(size.model_type);
  HfLayout layout{.model_type = size.model_type,
                  .tensors = size.model_type == "gpt2" ? gpt2_tensors(size) : llama_tensors(size),
                  .aliases = {},
                  .others = {}};
  if (size.tied)
    layout.aliases[kHfHead] = family.embedding;
  else
    add_tensor(layout.tensors, kHfHead, {size.vocabulary, size.dim});
  find_tensors(layout, family, found, where);
  std::set<std::string> used;
  for (const HfTensor& tensor : layout.tensors) used.insert(tensor.source);
  for (const auto& [name, kind] : found)
    if (!used.contains(name) && !is_computed_today(name)) layout.others.push_back(name);
  return layout;
}

}  // namespace fsdp::detail
