// Promise: parameters of every kind train as they do unsharded: frozen beside trainable, thawed, complex, odd
// shapes and types.
#include <gtest/gtest.h>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

constexpr int kKindsSteps = 10;

std::vector<at::Tensor> random_batch(int64_t index) {
  auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
  return {torch::randn({6, 8}, gen), torch::randint(9, {6}, gen)};
}

// A frozen base with small trainable matrices beside it, in every block.
struct Lora : Learner {
  struct BlockImpl : torch::nn::Module {
    BlockImpl() {
      base = register_module("base", torch::nn::Linear(64, 64));
      base->weight.set_requires_grad(false);
      base->bias.set_requires_grad(false);
      down = register_parameter("down", torch::randn({64, 2}) * 0.1);
      up = register_parameter("up", torch::zeros({2, 64}));
    }
    at::Tensor forward(const at::Tensor& x) { return torch::tanh(base(x) + x.matmul(down).matmul(up)); }
    torch::nn::Linear base{nullptr};
    at::Tensor down, up;
  };
  TORCH_MODULE(Block);

  Lora() {
    const SeededHere seeded(4);
    for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block()));
  }
  std::vector<at::Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
    return {torch::randn({4, 64}, gen), torch::randn({4, 64}, gen)};
  }
  at::Tensor forward(const std::vector<at::Tensor>& batch) override {
    auto x = batch[0];
    for (auto& block : blocks) x = block(x);
    return torch::mse_loss(x, batch[1]);
  }
  std::vector<Block> blocks;
};

TEST(Kinds, LoraHasGradientsAndMomentsForItsOwnOnly) {
  for (const int ranks : {1, 2, 4}) {
    Lora plain;
    const State wanted = train_plain(plain, ranks, kKindsSteps, Optim::fused_adamw);
    run_ranks(ranks, [&](World& world) {
      const std::shared_ptr<Learner> lora = std::make_shared<Lora>();
      auto model = fully_shard(world, lora, {.wrap = by_type<Lora::BlockImpl>()});
      AdamW optimizer(model.parameters(), AdamWOptions(1e-3));
      for (int step = 0; step < kKindsSteps; ++step) {
        model(lora->batch(step * ranks + world.rank())).backward();
        const auto stats = model.memory_stats();
        const int64_t trained = 3 * 4 * 256 * 4 / ranks;  // three blocks of two 64x2 matrices, padded
        require(stats.gradient_bytes > 0 && stats.gradient_bytes <= trained,
                std::to_string(stats.gradient_bytes));
        optimizer.step();
        optimizer.zero_grad();
      }
      int64_t moments = 0;
      for (const auto& [key, state] : optimizer.state())
        moments += static_cast<const torch::optim::AdamWParamState&>(*state).exp_avg().numel();
      require(moments <= 3 * 4 * 256 / ranks, "moments of " + std::to_string(moments) + " elements");
      require_same(state_of(model), wanted);
    });
  }
}

// Which parameters train in a step: frozen and thawed as the steps go.
void set_trainable(torch::nn::Module& module, int step) {
  for (auto& item : module.named_parameters()) {
    const bool block0 = item.key().find("block0") != std::string::npos;
    const bool base = item.key().find("base") != std::string::npos;
    bool trains = !base;
    if (step >= 3 && block0) trains = false;          // all of the first block is frozen
    if (step >= 6 && base && !block0) trains = true;  // bases that were frozen from the start
    if (step >= 9) trains = !base || block0;          // and others again
    item.value().set_requires_grad(trains);
  }
}

TEST(Kinds, FreezingAndThawingBetweenSteps) {
  constexpr int kLong = 12;
  for (const int ranks : {1, 2, 4}) {
    Lora plain;
    PlainTrainer trainer(plain, ranks);
    torch::optim::SGD sgd(trainer.parameters(), 0.1);
    for (int step = 0; step < kLong; ++step) {
      set_trainable(plain, step);
      trainer.backward([&](int rank) { return plain.forward(plain.batch(step * ranks + rank)); });
      trainer.step(sgd);
    }
    const State wanted = trainer.state();
    run_ranks(ranks, [&](World& world) {
      const std::shared_ptr<Learner> lora = std::make_shared<Lora>();
      auto model = fully_shard(world, lora, {.wrap = by_type<Lora::BlockImpl>()});
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      for (int step = 0; step < kLong; ++step) {
        set_trainable(*lora, step);
        model(lora->batch(step * ranks + world.rank())).backward();
        for (auto& item : model.named_parameters())
          require(item.value().grad().defined() == lora->named_parameters()[item.key()].requires_grad(),
                  "gradient of " + item.key() + " in step " + std::to_string(step));
        optimizer.step();
        optimizer.zero_grad();
      }
      require_same(state_of(model), wanted);
    });
  }
}

// Complex, double, zero-dim, zero-element, channels-last and sparse-gradient parameters in one model.
struct Odd : Learner {
  Odd() {
    const SeededHere seeded(8);
    wave = register_parameter("wave", torch::randn({8, 5}, torch::kComplexFloat));
    phase = register_parameter("phase", torch::randn({5}, torch::kComplexDouble));
    fine = register_parameter("fine", torch::randn({5}, torch::kDouble));
    gain = register_parameter("gain", torch::tensor(1.5));
    nothing = register_parameter("nothing", torch::zeros({0, 3}));
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 8).sparse(true)));
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)));
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  std::vector<at::Tensor> batch(int64_t index) const override { return random_batch(index); }
  at::Tensor forward(const std::vector<at::Tensor>& batch) override {
    const auto x = batch[0] + table(batch[1]);
    const auto y = torch::matmul(torch::complex(x, x * gain), wave);
    const auto z = (y * phase).abs() * fine;
    const auto image = x.view({1, 2, 4, 6}).contiguous(at::MemoryFormat::ChannelsLast);
    return z.square().mean().to(at::kFloat) + conv(image).square().mean() + nothing.sum();
  }
  at::Tensor wave, phase, fine, gain, nothing;
  torch::nn::Embedding table{nullptr};
  torch::nn::Conv2d conv{nullptr};
};

// SGD by hand: the stock one has no kernel for sparse gradients in the plain loop. Complex numbers go as
// pairs, because LibTorch's complex product has other bits at the end of a vector.
void descend(const at::Tensor& param, const at::Tensor& grad) {
  const auto reals = [](const at::Tensor& x) { return x.is_complex() ? at::view_as_real(x) : x; };
  reals(param.detach()).sub_(reals(grad) * 0.01);
}

TEST(Kinds, OddParametersTrainToTheSameBits) {
  for (const int ranks : {1, 2, 3, 4}) {
    Odd plain;
    PlainTrainer trainer(plain, ranks);
    for (int step = 0; step < kKindsSteps; ++step) {
      trainer.backward([&](int rank) { return plain.forward(plain.batch(step * ranks + rank)); });
      for (const at::Tensor& param : trainer.parameters()) descend(param, param.grad());
      trainer.load();
    }
    const State wanted = trainer.state();
    run_ranks(ranks, [&](World& world) {
      const std::shared_ptr<Learner> odd = std::make_shared<Odd>();
      auto model = fully_shard(world, odd, {.wrap = by_size(20)});
      for (int step = 0; step < kKindsSteps; ++step) {
        model(odd->batch(step * ranks + world.rank())).backward();
        for (auto& slice : model.parameters())
          if (slice.grad().defined()) descend(slice, slice.grad());
        model.zero_grad();
      }
      require(model.clip_grad_norm_(1.0).item<double>() == 0, "no gradients");
      require_same(state_of(model), wanted);
    });
  }
}

TEST(Kinds, OtherTypesOfShardsBuffersAndGradients) {
  run_ranks(2, [](World& world) {
    auto low = fully_shard(world, make_learner("convnet"), {.wrap = by_size(200), .precision = bf16_true()});
    for (const auto& slice : low.parameters()) require(slice.scalar_type() == at::kBFloat16, "bf16-true");
    for (const auto& buffer : low.module().buffers())
      require(!buffer.is_floating_point() || buffer.scalar_type() == at::kBFloat16, "buffers");
    train_sharded(low, world, 2, Optim::fused_adamw);
    require(parse_precision("bf16-true").master == at::kBFloat16, "by name");

    auto kept = fully_shard(
        world, make_learner("mlp"),
        {.wrap = by_size(200),
         .precision = {.param = at::kBFloat16, .reduce = at::kBFloat16, .keep_low_precision_grads = true}});
    auto wide =
        fully_shard(world, make_learner("mlp"),
                    {.wrap = by_size(200), .precision = {.param = at::kBFloat16, .reduce = at::kBFloat16}});
    for (int step = 0; step < 2; ++step) {
      for (auto* model : {&kept, &wide}) (*model)(model->module().batch(3 * step + world.rank())).backward();
      const auto narrow = kept.parameters(), full = wide.parameters();
      for (size_t i = 0; i < narrow.size(); ++i) {
        require(narrow[i].grad().scalar_type() == at::kBFloat16 && full[i].grad().scalar_type() == at::kFloat,
                "types");
        require(at::equal(narrow[i].grad().to(at::kFloat), full[i].grad()), "the same values, kept narrow");
      }
      kept.zero_grad();
      wide.zero_grad();
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
