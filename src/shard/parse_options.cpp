// Strategies, policies and precisions by name.
#include <fsdp/options.h>

#include <cctype>
#include <utility>
#include <vector>

namespace fsdp {

Precision fp32() { return {}; }
Precision bf16() { return {.param = at::kBFloat16, .reduce = at::kFloat}; }
Precision fp16() { return {.param = at::kHalf, .reduce = at::kFloat}; }
Precision bf16_true() {
  return {.param = at::kBFloat16, .reduce = at::kBFloat16, .buffer = at::kBFloat16, .master = at::kBFloat16};
}

namespace {

// The value of `name`, in any case, among `known`.
template <class Value>
Value parse(const char* what, const std::string& name,
            const std::vector<std::pair<std::string, Value>>& known) {
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string names;
  for (const auto& [one, value] : known) {
    if (one == lower) return value;
    names += (names.empty() ? "" : ", ") + one;
  }
  TORCH_CHECK(false, "fsdp: no ", what, " '", name, "'; there are ", names);
}

}  // namespace

Strategy parse_strategy(const std::string& name) {
  return parse<Strategy>("strategy", name,
                         {{"full_shard", Strategy::full_shard},
                          {"shard_grad_op", Strategy::shard_grad_op},
                          {"no_shard", Strategy::no_shard},
                          {"hybrid_shard", Strategy::hybrid_shard},
                          {"hybrid_shard_zero2", Strategy::hybrid_shard_zero2}});
}

BackwardPrefetch parse_backward_prefetch(const std::string& name) {
  return parse<BackwardPrefetch>("backward_prefetch", name,
                                 {{"backward_pre", BackwardPrefetch::pre},
                                  {"backward_post", BackwardPrefetch::post},
                                  {"pre", BackwardPrefetch::pre},
                                  {"post", BackwardPrefetch::post},
                                  {"none", BackwardPrefetch::none}});
}

Precision parse_precision(const std::string& name) {
  return parse<Precision>(
      "precision", name,
      {{"32", fp32()}, {"bf16-mixed", bf16()}, {"16-mixed", fp16()}, {"bf16-true", bf16_true()}});
}

}  // namespace fsdp
