// Promise: where ranks share memory a gather copies nothing, and no rank sees a value before all are ready.
#include <chrono>
#include <thread>

#include "behaviour/misuse_net.h"

namespace fsdp::testing {
namespace {

constexpr auto kLong = std::chrono::milliseconds(150);

ShardOptions by_linear() { return {.wrap = by_size(100)}; }

// A net that may be late between two readings of one layer: others need not wait for it.
struct Twice : Learner {
  Twice() {
    const SeededHere seeded(5);
    layer = register_module("layer", torch::nn::Linear(12, 12));
    head = register_module("head", torch::nn::Linear(12, 8));
    for (auto& parameter : layer->parameters()) parameter.requires_grad_(false);
  }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
    return {torch::randn({4, 12}, gen)};
  }
  Tensor forward(const std::vector<Tensor>& batch) override {
    const Tensor hidden = layer(batch[0]);
    if (late && forward_is_late) std::this_thread::sleep_for(kLong);
    if (late && !forward_is_late)
      hidden.register_hook([](const Tensor&) { std::this_thread::sleep_for(kLong); });
    return head(layer(hidden)).square().mean();
  }
  torch::nn::Linear layer{nullptr}, head{nullptr};
  bool late = false;
  bool forward_is_late = true;
};

void fill_by_pointer(const Tensor& slice) {
  auto* data = static_cast<float*>(slice.data_ptr());
  std::fill(data, data + slice.numel(), 100.0F);
}

TEST(SharedShards, NeedNoSlots) {
  run_both(2, [](World& world) {
    for (const bool shares : {true, false}) {
      ShardOptions options = by_linear();
      options.share_shards = shares;
      Play play(world, fully_shard(world, std::make_shared<PlayNet>(), options));
      for (int i = 0; i < 3; ++i) play.train();
      const MemoryStats stats = play.memory_stats();
      require((stats.arena_bytes == 0) == shares, "slots of " + std::to_string(stats.arena_bytes));
      require(stats.overflow_bytes == 0 && stats.all_gathers > 0, "nothing beside them");
    }
  });
}

// What is cast on its way, or transformed, is another rank's business only when it arrives.
TEST(SharedShards, AreOnlyWhatIsComputedWithAsItIsKept) {
  run_ranks(2, [](World& world) {
    const auto net = std::make_shared<PlayNet>();
    ShardOptions options = by_linear();
    options.unit = [](const std::string& unit) {
      return unit == "first" ? UnitOptions{.precision = bf16()} : UnitOptions{};
    };
    auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), options);
    const int64_t slots = model.memory_stats().arena_bytes;
    const int64_t first = 2 * (12 * 14 + 14);
    const int64_t padding = 2 * 512;
    require(first <= slots && slots <= first + padding, "slots of " + std::to_string(slots));
  });
}

// A slice is this rank's: what is saved or copied with its storage is no more than that.
TEST(SharedShards, SlicesHaveAStorageOfTheirOwn) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, std::make_shared<PlayNet>(), {.wrap = whole_model()});
    for (const Tensor& flat : model.flat_parameters())
      require(flat.storage().nbytes() == flat.nbytes() && flat.storage_offset() == 0,
              std::to_string(flat.storage().nbytes()) + " bytes of storage");
  });
}

// Writes that nobody sees, and gives back what was there.
class Overwritten {
 public:
  explicit Overwritten(const Sharded<Learner>& model) : model_(model) {
    for (const Tensor& slice : model.parameters()) {
      before_.push_back(slice.detach().clone());
      fill_by_pointer(slice);
    }
  }
  ~Overwritten() {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < before_.size(); ++i) model_.parameters()[i].copy_(before_[i]);
  }
  Overwritten(const Overwritten&) = delete;
  Overwritten& operator=(const Overwritten&) = delete;

 private:
  const Sharded<Learner>& model_;
  std::vector<Tensor> before_;
};

TEST(SharedShards, AreNotReadWhenACallWithoutGradientsIsOver) {
  run_both(2, [](World& world) {
    const auto net = std::make_shared<Twice>();
    const at::NoGradGuard no_grad;
    const auto batch = net->batch(0);
    const float wanted = net->forward(batch).item<float>();
    auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), by_linear());
    net->late = world.rank() == 1;
    for (const int step : {0, 1}) {  // on demand, and by plan
      const float found = model(batch).item<float>();
      const Overwritten overwritten(model);
      require(found == wanted, "step " + std::to_string(step) + ": " + std::to_string(found));
    }
  });
}

// A frozen layer is read by the last node of a backward, which nothing is reduced after.
TEST(SharedShards, AreNotReadWhenABackwardIsOver) {
  run_both(2, [](World& world) {
    const auto net = std::make_shared<Twice>();
    Tensor input = net->batch(0)[0].requires_grad_();
    net->forward({input}).backward();
    const Tensor wanted = input.grad().clone();
    net->zero_grad();
    auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), by_linear());
    net->late = world.rank() == 1;
    net->forward_is_late = false;
    for (const int step : {0, 1, 2}) {  // on demand, and by plan
      input.mutable_grad() = Tensor();
      if (step == 0) {
        const auto kept = model.no_sync();
        model(std::vector<Tensor>{input}).backward();
      } else {
        model(std::vector<Tensor>{input}).backward();
      }
      const Overwritten overwritten(model);
      require(input.grad().equal(wanted), "the gradient of step " + std::to_string(step));
      model.zero_grad();
    }
  });
}

// Between forward and backward units stay gathered: a write by an operator waits for those who read.
TEST(SharedShards, AWriteWaitsForOtherRanksForward) {
  run_both(2, [](World& world) {
    const auto net = std::make_shared<Twice>();
    const auto batch = net->batch(0);
    const float wanted = net->forward(batch).item<float>();
    auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), by_linear());
    net->late = world.rank() == 1;
    const float found = model(batch).item<float>();
    {
      const at::NoGradGuard no_grad;
      for (Tensor slice : model.parameters()) slice.fill_(100);
    }
    require(found == wanted, std::to_string(found));
    require(model(batch).item<float>() != wanted, "what was written is found");
  });
}

// A full state dict gathers units that the forward before it still holds, and must leave them held.
TEST(SharedShards, AFullStateDictKeepsWhatIsGathered) {
  run_both(2, [](World& world) {
    const auto net = std::make_shared<Twice>();
    const auto batch = net->batch(0);
    const float wanted = net->forward(batch).item<float>();
    auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), by_linear());
    const Tensor loss = model(batch);  // its backward may come: units stay gathered
    const StateDict whole = state_dict(model);
    net->late = world.rank() == 1;
    const float found = model(batch).item<float>();
    {
      const at::NoGradGuard no_grad;
      for (Tensor slice : model.parameters()) slice.fill_(100);
    }
    require(found == wanted, std::to_string(found));
  });
}

// More ranks than processors, and a unit that takes a while to copy: some rank is always late.
TEST(SharedShards, AWriteWaitsForOtherRanksScope) {
  run_both(4, [](World& world) {
    torch::nn::Linear wide(1500, 1500);
    auto model = fully_shard(world, wide, {.wrap = whole_model()});
    const auto write = [&](double value) {
      const at::NoGradGuard no_grad;
      for (Tensor slice : model.parameters()) slice.fill_(value);
    };
    write(0);
    for (int round = 0; round < 20; ++round) {
      const bool back = round % 2 == 0;  // it is written by the scope, or after it
      {
        const auto whole = model.full_params({.write_back = back});
        const at::NoGradGuard no_grad;
        require(wide->weight.eq(round).all().item<bool>(), "round " + std::to_string(round));
        if (back) wide->weight.fill_(round + 1);
      }
      if (!back) write(round + 1);
    }
    const auto whole = model.full_params({.rank0_only = true});
    if (world.rank() == 0) require(wide->weight.eq(20).all().item<bool>(), "what was written last");
  });
}

// As soon as a scope is there, its memory is a copy: what nobody sees may be written.
TEST(SharedShards, AreNotReadWhenAScopeIsThere) {
  run_both(2, [](World& world) {
    torch::nn::Linear wide(1500, 1500);
    auto model = fully_shard(world, wide, {.wrap = whole_model()});
    for (int round = 0; round < 10; ++round) {
      {
        const at::NoGradGuard no_grad;
        for (Tensor slice : model.parameters()) slice.fill_(round);
      }
      const auto whole = model.full_params({.rank0_only = true});
      for (const Tensor& slice : model.parameters()) fill_by_pointer(slice);
      if (world.rank() == 0)
        require(wide->weight.eq(round).all().item<bool>(), "round " + std::to_string(round));
    }
  });
}

// Rank 0 has no part of the last parameter of one unit, rank 1 none of the first of the other: fsdp::AdamW
// comes to the units in different orders, while both hold them for a backward that nobody calls.
TEST(SharedShards, MayBeWrittenInDifferentOrders) {
  struct Affine : torch::nn::Module {
    explicit Affine(bool small_first) {
      if (small_first) bias = register_parameter("bias", torch::zeros({64}));
      weight = register_parameter("weight", torch::eye(64));
      if (!small_first) bias = register_parameter("bias", torch::zeros({64}));
    }
    Tensor forward(const Tensor& x) { return torch::addmm(bias, x, weight); }
    Tensor weight, bias;
  };
  struct Pair : torch::nn::Module {
    Pair() {
      one = register_module("one", std::make_shared<Affine>(false));
      two = register_module("two", std::make_shared<Affine>(true));
    }
    Tensor forward(const Tensor& x) { return two->forward(one->forward(x)).square().mean(); }
    std::shared_ptr<Affine> one, two;
  };
  run_both(2, [](World& world) {
    auto model = fully_shard(world, std::make_shared<Pair>(),
                             {.wrap = by_size(1000), .comm = {.timeout = std::chrono::seconds(5)}});
    AdamW optimizer(model.parameters(), AdamWOptions(1e-3));
    const Tensor x = torch::ones({2, 64}) * (1 + world.rank());
    for (int step = 0; step < 3; ++step) {
      model(x).backward();
      const Tensor shown = model(x);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

// One rank throws when it has read everything; the next calls are as if nothing had happened.
TEST(SharedShards, AFailedEvaluationOfOneRankIsItsOwn) {
  struct Throwing : torch::nn::Module {
    Throwing() { layer = register_module("layer", torch::nn::Linear(8, 8)); }
    Tensor forward(const Tensor& x) {
      const Tensor y = layer(x);
      if (throws) throw std::runtime_error("a bad batch");
      return y;
    }
    torch::nn::Linear layer{nullptr};
    bool throws = false;
  };
  run_both(2, [](World& world) {
    const auto net = std::make_shared<Throwing>();
    auto model = fully_shard(world, net, {.comm = {.timeout = std::chrono::seconds(5)}});
    const at::NoGradGuard no_grad;
    for (int i = 0; i < 4; ++i) {
      net->throws = i % 2 == 1 && world.rank() == 1;
      try {
        model(torch::ones({2, 8}));
        require(!net->throws, "it throws");
      } catch (const std::runtime_error& error) {
        require_words(error.what(), "a bad batch");
      }
    }
  });
}

TEST(SharedShards, AWriteByAnOperatorThatReadsTheUnitIsRefused) {
  run_ranks(2, [](World& world) {
    torch::nn::Linear layer(torch::nn::LinearOptions(16, 16).bias(false));
    auto model = fully_shard(world, layer, {.wrap = whole_model()});
    const at::NoGradGuard no_grad;
    model.run([&](torch::nn::LinearImpl& inner) {
      Tensor slice = model.parameters()[0];
      require_words(refusal([&] { slice.add_(inner.weight.view({-1}).narrow(0, 0, 128)); }),
                    "are written while this operator");
      slice.add_(inner.weight.view({-1}).narrow(0, 0, 128).clone());
      return torch::zeros({1});
    });
  });
}

TEST(SharedShards, AWriteBesideAReaderOfThisRankIsRefused) {
  run_ranks(2, [](World& world) {
    const auto net = std::make_shared<PlayNet>();
    auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), by_linear());
    std::string words;
    net->inside = [&](PlayNet& inner) {
      const auto scope = use(inner.first->weight);
      const at::NoGradGuard no_grad;
      words = refusal([&] {
        for (Tensor slice : model.parameters()) slice.fill_(1);
      });
    };
    model(net->batch(0));
    require_words(words, "'first' are written while");
    require(model.last_error() != nullptr, "last_error() has it");
  });
}

// A codec may lose bits: what goes through it does not depend on where shards lie.
TEST(SharedShards, OfAnInnerModelGoThroughTheOutersCodec) {
  run_ranks(2, [](World& world) {
    const auto trained = [&](bool shares) {
      const auto net = std::make_shared<PlayNet>();
      auto inner = fully_shard(world, net->first, {.wrap = whole_model(), .share_shards = shares});
      ShardOptions options = by_linear();
      options.gather_codec = cast_codec(at::kBFloat16);
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), options);
      train_sharded(model, world, 3, Optim::sgd);
      return state_of(model);
    };
    require_same(trained(true), trained(false));
  });
}

// Units of an inner model stay in its group's memory; the outer model's figures count them.
TEST(SharedShards, OfAnInnerModelMoveWithIt) {
  run_both(2, [](World& world) {
    const auto plain = std::make_shared<PlayNet>();
    const State wanted = train_plain(*plain, 2, 4, Optim::sgd);
    const auto net = std::make_shared<PlayNet>();
    auto inner = fully_shard(world, net->first, {.wrap = whole_model()});
    auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), by_linear());
    train_sharded(model, world, 4, Optim::sgd);
    require_same(state_of(model), wanted);
    int64_t moved = 0, counted = 0;
    for (const OpStats& one : model.comm_stats())
      if (one.op == "all_gather") moved = one.count;
    for (const UnitCounts& one : model.unit_counts()) counted += one.gathers;
    require(moved >= counted && counted > 0, std::to_string(moved) + " of " + std::to_string(counted));
  });
}

}  // namespace
}  // namespace fsdp::testing
