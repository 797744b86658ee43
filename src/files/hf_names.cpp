#include "files/hf_names.h"

#include <array>
#include <string_view>

namespace fsdp::detail {

std::string hf_name(const Manifest& manifest, const std::string& name) {
  if (manifest.tensors.contains(name)) return name;
  for (const std::string_view prefix : {"transformer.", "model."})
    if (name.starts_with(prefix) && manifest.tensors.contains(name.substr(prefix.size())))
      return name.substr(prefix.size());
  return name;
}

bool is_computed_today(const std::string& name) {
  constexpr std::array<std::string_view, 3> kSuffixes{".attn.bias", ".attn.masked_bias",
                                                      ".rotary_emb.inv_freq"};
  for (const std::string_view suffix : kSuffixes)
    if (name.ends_with(suffix)) return true;
  return false;
}

}  // namespace fsdp::detail
