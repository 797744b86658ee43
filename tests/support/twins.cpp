#include "support/twins.h"

namespace fsdp::testing {

using at::Tensor;

namespace {

at::Generator generator_of(int64_t number) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(number));
}

// Flat, in the order of its memory, which is that of the module's parameter.
Tensor in_memory_order(const Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1}, dense.storage_offset());
}

}  // namespace

Tensor Moment::randn(at::IntArrayRef shape, int64_t salt) const {
  return torch::randn(shape, generator_of(1000 + index() + 100000 * salt));
}

Tensor Moment::randint(int64_t high, at::IntArrayRef shape, int64_t salt) const {
  return torch::randint(high, shape, generator_of(5000 + index() + 100000 * salt));
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

void require_gradients(const ShardedModel& model, const State& wanted) {
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

void require_seen(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
  require(got.size() == wanted.size(), "the program saw as many results as the plain one");
  for (size_t i = 0; i < got.size(); ++i)
    require(got[i].equal(wanted[i]), "result " + std::to_string(i) + " has the plain one's bits");
}

State train_plain(Learner& learner, int ranks, int steps, Optim kind, at::ScalarType compute,
                  int microbatches) {
  PlainOptions options;
  if (compute != at::kFloat) options.compute = [&](const std::string&, at::ScalarType) { return compute; };
  PlainTrainer trainer(learner, ranks, options);
  const auto optimizer = make_optimizer(kind, trainer.parameters());
  const at::Device device = trainer.parameters().front().device();
  for (int step = 0; step < steps; ++step) {
    for (int m = 0; m < microbatches; ++m)
      trainer.collect([&](int rank) {
        const int64_t index = (static_cast<int64_t>(step) * microbatches + m) * ranks + rank;
        return learner.forward(learner.batch_on(index, device, compute));
      });
    trainer.reduce();
    trainer.step(*optimizer);
  }
  return trainer.state();
}

void train_sharded(const Sharded<Learner>& model, const World& world, int steps, Optim kind) {
  ShardedTwin twin(world, model, optimizer_of(kind));
  for (int step = 0; step < steps; ++step) twin.train();
}

}  // namespace fsdp::testing
