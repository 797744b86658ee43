#include "behaviour/programs.h"

namespace fsdp::testing {

using at::Tensor;

// Weight decay and momentum: a gradient of zeros is not the same as none.
std::unique_ptr<torch::optim::Optimizer> optimizer_of(std::vector<Tensor> params) {
  return std::make_unique<torch::optim::AdamW>(std::move(params),
                                               torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}

Tensor joined(const std::vector<std::vector<std::vector<Tensor>>>& taken, size_t param) {
  Tensor total;
  for (size_t k = 0; k < taken.front().size(); ++k) {
    std::vector<Tensor> terms;
    Tensor some;
    for (const auto& rank : taken)
      if (rank[k][param].defined()) some = rank[k][param];
    if (!some.defined()) continue;
    for (const auto& rank : taken)
      terms.push_back(rank[k][param].defined() ? rank[k][param] : torch::zeros_like(some));
    const Tensor mean = tree_sum(terms).mul(1.0F / static_cast<float>(taken.size()));
    total = total.defined() ? total + mean : mean;
  }
  return total;
}

State weights_of(const torch::nn::Module& module) {
  State state;
  for (const auto& item : module.named_parameters()) state[item.key()] = item.value().detach().clone();
  return state;
}

namespace {

// Flat, in the order of its memory, which is that of the module's parameter.
Tensor in_memory_order(const Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1}, dense.storage_offset());
}

}  // namespace

void check_gradients(const ShardedModel& model, const State& wanted) {
  for (const auto& item : model.named_parameters()) {
    const Tensor& grad = item.value().grad();
    const auto found = wanted.find(item.key());
    if (item.value().numel() == 0) continue;
    require(grad.defined() || found == wanted.end(), item.key() + " has a gradient");
    require(!grad.defined() || found != wanted.end(), item.key() + " has no gradient, since no rank used it");
    if (!grad.defined()) continue;
    const Tensor whole = in_memory_order(found->second);
    for (const auto& shard : model.parameter_info(item.key()).shards)
      if (shard.is_local)
        require(grad.equal(whole.narrow(0, shard.start, shard.size)),
                "the gradient of " + item.key() + " has the plain one's bits");
  }
}

void check_seen(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
  require(got.size() == wanted.size(), "the program saw as many results as the plain one");
  for (size_t i = 0; i < got.size(); ++i)
    require(got[i].equal(wanted[i]), "result " + std::to_string(i) + " has the plain one's bits");
}

ShardOptions sharded_by(WrapPolicy policy) {
  ShardOptions options{.wrap = std::move(policy)};
  options.comm.timeout = std::chrono::milliseconds(20000);
  return options;
}

std::vector<Variant> with_slots(std::vector<Variant> variants, int ranks) {
  const size_t given = ranks > 1 ? variants.size() : 0;
  for (size_t i = 0; i < given; ++i) {
    variants.push_back({variants[i].name + ", slots", variants[i].options});
    variants.back().options.share_shards = false;
  }
  return variants;
}

std::vector<Variant> usual_variants() {
  return {{"blocks", sharded_by(by_type<BlockImpl>())},
          {"sizes", sharded_by(by_size(100))},
          {"whole", sharded_by(whole_model())}};
}

}  // namespace fsdp::testing
