// Promise: what a sharded model tells about itself is true.
#include <gmock/gmock.h>

#include <map>
#include <mutex>

#include "runtime/engine.h"
#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

const std::vector<int> kRanks = {1, 2, 3, 4};

Sharded<Learner> sharded(const World& world, const std::string& learner, ShardOptions options = {}) {
  if (!options.wrap) options.wrap = by_size(200);
  return fully_shard(world, make_learner(learner), options);
}

void train_step(Sharded<Learner>& model, const World& world) {
  model(model.module().batch(world.rank())).backward();
}

void require_bytes(int64_t got, int64_t wanted, const std::string& what) {
  require(got == wanted, what + ": " + std::to_string(got) + " bytes, not " + std::to_string(wanted));
}

int64_t elements_of(Learner& learner) {
  std::map<const void*, int64_t> unique;
  for (const Tensor& param : learner.parameters()) unique[param.unsafeGetTensorImpl()] = param.numel();
  int64_t n = 0;
  for (const auto& [impl, numel] : unique) n += numel;
  return n;
}

// Of a binary tree over four microbatches: a sum waits alone, alone one level higher, with another, and not.
TEST(Insight, PartialSumsOfAStepAreCounted) {
  run_ranks(1, [](World& world) {
    auto model = sharded(world, "mlp", {.reproducible = Reproducible{.microbatches = 4}});
    const int64_t shards = model.memory_stats().parameter_bytes;
    for (const int64_t waiting : {1, 1, 2, 0}) {
      train_step(model, world);
      const int64_t counted = model.memory_stats().partial_sum_bytes;
      require(counted == waiting * shards, std::to_string(counted) + " bytes of partial sums, not " +
                                               std::to_string(waiting) + " times " + std::to_string(shards));
    }
  });
}

TEST(Insight, GradientsAreCountedInTheirOwnDtype) {
  run_ranks(2, [](World& world) {
    auto model = sharded(world, "mlp",
                         {.precision = Precision{.reduce = at::kBFloat16, .keep_low_precision_grads = true}});
    train_step(model, world);
    const MemoryStats stats = model.memory_stats();
    require(stats.gradient_bytes > 0 && 2 * stats.gradient_bytes == stats.parameter_bytes,
            std::to_string(stats.gradient_bytes) + " bytes of bf16 gradients, " +
                std::to_string(stats.parameter_bytes) + " of fp32 shards");
  });
}

TEST(Insight, MemoryAddsUp) {
  for (const int ranks : kRanks)
    for (const auto strategy : {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard})
      run_ranks(ranks, [&](World& world) {
        auto model = sharded(world, "gpt2", {.strategy = strategy});
        int64_t peak = 0;
        const auto check = [&](const std::string& when) {
          const MemoryStats stats = model.memory_stats();
          require(stats.current_bytes == stats.parameter_bytes + stats.gradient_bytes + stats.arena_bytes +
                                             stats.buffer_bytes + stats.overflow_bytes +
                                             stats.partial_sum_bytes + stats.wire_bytes,
                  "current is the sum of its parts " + when);
          require(stats.peak_bytes >= stats.current_bytes, "the peak is no less than now " + when);
          require(stats.peak_bytes >= peak, "the peak never falls " + when);
          peak = stats.peak_bytes;
        };
        check("at first");
        int64_t shards = 0;
        for (const Tensor& shard : model.flat_parameters()) shards += static_cast<int64_t>(shard.nbytes());
        require(model.memory_stats().parameter_bytes == shards, "parameter_bytes are the shards'");
        require(model.memory_stats().gradient_bytes == 0, "no gradients yet");
        const Tensor loss = model(model.module().batch(world.rank()));
        check("after forward");
        loss.backward();
        check("after backward");
        for (int step = 0; step < 3; ++step) {
          train_step(model, world);
          check("after a step");
        }
        int64_t gradients = 0;
        for (const Tensor& slice : model.parameters())
          gradients += static_cast<int64_t>(slice.grad().nbytes());
        require(model.memory_stats().gradient_bytes >= gradients, "gradients are counted");
      });
}

// What was decided before anything was allocated is what there is.
TEST(Insight, SpecsSayWhatIsAllocated) {
  for (const auto& precision : {fp32(), bf16(), bf16_true()})
    for (const bool share : {false, true})
      run_ranks(2, [&](World& world) {
        auto model = sharded(world, "gpt2", {.precision = precision, .share_shards = share});
        for (int step = 0; step < 3; ++step) train_step(model, world);
        detail::UnitSpec total;
        for (const auto& unit : detail::current(model.engine()).units)
          total.regions.insert(total.regions.end(), unit->spec.regions.begin(), unit->spec.regions.end());
        const MemoryStats stats = model.memory_stats();
        require_bytes(stats.parameter_bytes, total.shard_bytes(), "shards");
        require_bytes(stats.gradient_bytes, total.gradient_bytes(), "gradient shards");
        require(stats.arena_bytes <= total.slot_bytes(), "slots");
        require((stats.arena_bytes == 0) == (total.slot_bytes() == 0), "no slots where none are needed");
        require(0 < stats.buffer_bytes && stats.buffer_bytes <= total.buffer_bytes(), "buffers");
      });
}

// Of stock optimizers and our own. Every moment has the size of its slice.
TEST(Insight, MomentsAreCountedWhereTheOptimizerIsGiven) {
  run_ranks(2, [](World& world) {
    auto model = sharded(world, "gpt2", {});
    const auto bytes_with = [&](auto&& optimizer) {
      train_step(model, world);
      optimizer.step();
      const MemoryStats stats = model.memory_stats(optimizer);
      require_bytes(stats.current_bytes, model.memory_stats().current_bytes + stats.optimizer_bytes,
                    "current");
      return stats.optimizer_bytes;
    };
    int64_t slices = 0;
    for (const Tensor& slice : model.parameters()) slices += static_cast<int64_t>(slice.nbytes());
    namespace optim = torch::optim;
    const auto params = model.parameters();
    require_bytes(model.memory_stats().optimizer_bytes, int64_t{0}, "not asked for");
    require_bytes(bytes_with(optim::AdamW(params, optim::AdamWOptions(1e-3))), 2 * slices, "AdamW");
    require_bytes(bytes_with(optim::Adam(params, optim::AdamOptions(1e-3).amsgrad(true))), 3 * slices,
                  "Adam");
    require_bytes(bytes_with(optim::SGD(params, optim::SGDOptions(1e-3).momentum(0.9))), slices, "SGD");
    require_bytes(bytes_with(optim::Adagrad(params, optim::AdagradOptions(1e-3))), slices, "Adagrad");
    require_bytes(
        bytes_with(optim::RMSprop(params, optim::RMSpropOptions(1e-3).momentum(0.9).centered(true))),
        3 * slices, "RMSprop");
    require_bytes(bytes_with(AdamW(params, AdamWOptions(1e-3))), 2 * slices, "fsdp::AdamW");
    require_bytes(bytes_with(AdamW(params, AdamWOptions(1e-3), at::kBFloat16)), slices, "moments in bf16");
  });
}

// whole parameters and gradients, less what is there.
TEST(Insight, SavedBytesAreThoseOfTheOtherRanks) {
  std::map<int, int64_t> saved;
  for (const int ranks : {1, 2, 4})
    run_ranks(ranks, [&](World& world) {
      auto model = fully_shard(world, make_gpt2(8, 32), {.wrap = by_size(200)});
      for (int step = 0; step < 3; ++step) train_step(model, world);
      const MemoryStats stats = model.memory_stats();
      const int64_t whole = 2 * 4 * model.num_parameters();
      require(stats.saved_bytes == whole - stats.current_bytes, "what whole ones would need more");
      if (world.rank() == 0) saved[ranks] = stats.saved_bytes;
    });
  EXPECT_LE(saved[1], 0);  // alone nothing is saved
  EXPECT_GT(saved[2], 0);
  EXPECT_GT(saved[4], saved[2]);
}

// The shard of a rank is 1/W of the parameters, up to padding.
TEST(Insight, ShardsShrinkWithTheRanks) {
  for (const int ranks : kRanks)
    run_ranks(ranks, [&](World& world) {
      auto model = sharded(world, "gpt2");
      const int64_t whole = 4 * model.num_parameters();
      const auto regions = static_cast<int64_t>(model.flat_parameters().size());
      const auto params = static_cast<int64_t>(model.parameters().size());
      const int64_t held = model.memory_stats().parameter_bytes;
      require(held * ranks >= whole, "all ranks together hold everything");
      require(held * ranks <= whole + 256 * (params + regions * ranks), "and padding to 256 bytes, no more");
    });
}

TEST(Insight, GathersAndReducesAreCounted) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [&](World& world) {
      auto model =
          fully_shard(world, make_learner("gpt2_untied"));  // blocks: none is used twice in a forward
      const auto units = static_cast<int64_t>(model.unit_counts().size());
      for (const UnitCounts& unit : model.unit_counts())
        require(unit.gathers == 0 && unit.reduces == 0, "nothing has moved");
      for (int step = 0; step < 4; ++step) train_step(model, world);
      const MemoryStats before = model.memory_stats();
      train_step(model, world);
      const MemoryStats after = model.memory_stats();
      require(after.reduce_scatters - before.reduce_scatters == units, "one reduce per unit and step");
      const int64_t gathers = after.all_gathers - before.all_gathers;
      require(gathers >= units && gathers <= 2 * units, "a gather for forward, and one for backward at most");
      int64_t all_gathers = 0, reduces = 0;
      for (const UnitCounts& unit : model.unit_counts()) {
        all_gathers += unit.gathers;
        reduces += unit.reduces;
      }
      require(all_gathers == after.all_gathers && reduces == after.reduce_scatters,
              "units add up to the model");
    });
}

TEST(Insight, CommunicationIsCountedInCallsBytesAndSeconds) {
  run_ranks(2, [](World& world) {
    auto model = sharded(world, "gpt2");
    train_step(model, world);
    const auto row = [&](const std::string& op) {
      for (const OpStats& stats : model.comm_stats())
        if (stats.op == op) return stats;
      return OpStats{};
    };
    const MemoryStats counted = model.memory_stats();
    require(row("all_gather").count >= counted.all_gathers, "all_gather calls");
    require(row("reduce_scatter").count == counted.reduce_scatters, "reduce_scatter calls");
    const int64_t bytes = row("reduce_scatter").bytes;
    require(bytes == 2 * counted.parameter_bytes, "whole gradients went in: " + std::to_string(bytes));
    require(row("reduce_scatter").seconds > 0, "and took time");
  });
}

TEST(Insight, StatesOfAStep) {
  struct Asks : Learner {
    Asks() { weight = register_parameter("weight", torch::ones({40})); }
    std::vector<Tensor> batch(int64_t index) const override {
      return {torch::full({40}, static_cast<double>(index))};
    }
    Tensor forward(const std::vector<Tensor>& batch) override {
      const Tensor y = (weight * batch[0]).sum();
      if (inside) inside();
      return y;
    }
    Tensor weight;
    std::function<void()> inside;
  };
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](World& world) {
      const auto module = std::make_shared<Asks>();
      auto model = fully_shard(world, std::static_pointer_cast<Learner>(module));
      const auto unit_state = [&] { return model.parameter_info("weight").state; };
      require(model.training_state() == TrainingState::idle, "idle at first");
      require(ranks == 1 || unit_state() == UnitState::sharded, "sharded at first");
      for (int step = 0; step < 3; ++step) {
        int calls = 0;
        module->inside = [&] {
          ++calls;
          require(model.training_state() == TrainingState::forward_backward, "inside forward");
          require(ranks == 1 || unit_state() == UnitState::gathered, "gathered inside forward");
        };
        const Tensor loss = model(module->batch(world.rank()));
        require(calls == 1, "forward asked");
        module->inside = nullptr;
        require(model.training_state() == TrainingState::forward_backward, "until backward");
        loss.backward();
        require(model.training_state() == TrainingState::idle, "idle after backward");
        require(unit_state() == UnitState::sharded, "sharded after backward");
        if (ranks > 1) {
          const auto kept_back = model.no_sync();
          model(module->batch(world.rank())).backward();
          require(unit_state() == UnitState::reducing, "gradients wait");
          model.zero_grad();
          require(unit_state() == UnitState::sharded, "no more");
        }
        {
          const auto whole = model.full_params();
          require(model.training_state() == TrainingState::summon_full_params, "inside full_params");
        }
        require(model.training_state() == TrainingState::idle, "idle after full_params");
        {
          const at::NoGradGuard no_grad;
          model(module->batch(world.rank()));
        }
        require(model.training_state() == TrainingState::idle, "idle after an evaluation");
      }
    });
  EXPECT_STREQ(to_string(TrainingState::summon_full_params), "summon_full_params");
  EXPECT_STREQ(to_string(UnitState::reducing), "reducing");
}

TEST(Insight, TiedParametersCountOnce) {
  for (const char* name : {"gpt2", "gpt2_untied", "llama_tied", "mlp", "frozen"}) {
    const int64_t wanted = elements_of(*make_learner(name));
    run_ranks(2, [&](World& world) {
      auto model = sharded(world, name);
      require(model.num_parameters() == wanted, std::to_string(model.num_parameters()) + " elements");
    });
  }
}

TEST(Insight, RatiosOfAllRanksAddUpToOne) {
  for (const int ranks : kRanks) {
    double total = 0;
    std::mutex mutex;
    run_ranks(ranks, [&](World& world) {
      const auto model = sharded(world, "gpt2");
      int64_t local = 0;
      for (const Tensor& slice : model.parameters()) local += slice.numel();
      require(model.local_sharding_ratio() * static_cast<double>(model.num_parameters()) ==
                  static_cast<double>(local),
              "this rank's slices");
      const std::lock_guard lock(mutex);
      total += model.local_sharding_ratio();
    });
    EXPECT_NEAR(total, 1.0, 1e-12);
    run_ranks(ranks, [&](World& world) {
      require(sharded(world, "mlp", {.strategy = Strategy::no_shard}).local_sharding_ratio() == 1.0,
              "unsharded, everything is here");
    });
  }
}

TEST(Insight, ShardsCoverEveryParameter) {
  for (const char* name : {"gpt2", "lstm", "frozen"})
    for (const int ranks : kRanks) {
      const auto plain = make_learner(name);
      run_ranks(ranks, [&](World& world) {
        auto model = sharded(world, name);
        const auto slices = model.named_parameters();
        const auto shapes = plain->named_parameters();
        for (const auto& item : shapes) {  // tied names too
          const ParameterInfo info = model.parameter_info(item.key());
          require(info.shape == item.value().sizes().vec(), item.key() + " has its shape");
          require(!info.unit.empty() && slices.contains(info.name),
                  item.key() + " has a unit and a first name");
          int64_t end = 0, local = 0;
          int last = -1;
          for (const ParameterShard& shard : info.shards) {
            require(shard.start == end && shard.size > 0, item.key() + " is covered without gaps");
            require(shard.rank > last, "by ranks in order");
            require(shard.is_local == (shard.rank == world.rank()), "is_local says whose it is");
            if (shard.is_local) local = shard.size;
            end += shard.size;
            last = shard.rank;
          }
          require(end == item.value().numel(), item.key() + " is covered to the end");
          require(slices[info.name].numel() == local, "the slice is the local shard");
        }
      });
    }
}

TEST(Insight, FlatParametersAreTheShards) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [&](World& world) {
      auto model = sharded(world, "frozen");
      const auto shards = model.flat_parameters();
      int64_t flat = 0, slices = 0;
      for (const Tensor& shard : shards) {
        require(shard.dim() == 1 && shard.is_contiguous(), "flat");
        require(shard.nbytes() % 256 == 0, "a multiple of 256 bytes");
        require(reinterpret_cast<uintptr_t>(shard.data_ptr()) % 64 == 0, "aligned");
        flat += shard.numel();
      }
      for (const Tensor& slice : model.parameters()) {
        slices += slice.numel();
        if (slice.numel() == 0) continue;
        const bool inside = std::any_of(shards.begin(), shards.end(), [&](const Tensor& shard) {
          const auto* begin = static_cast<const char*>(shard.const_data_ptr());
          const auto* at = static_cast<const char*>(slice.const_data_ptr());
          return at >= begin && at + slice.nbytes() <= begin + shard.nbytes();
        });
        require(inside, "every slice lies in a shard");
      }
      require(slices <= flat, "padding is in the shards only");
    });
}

// Padding is zero from birth and stays so.
TEST(Insight, PaddingStaysZero) {
  run_ranks(3, [](World& world) {
    auto model = sharded(world, "gpt2");
    AdamW optimizer(model.parameters(), AdamWOptions(0.1).weight_decay(0.1));
    for (int step = 0; step < 4; ++step) {
      train_step(model, world);
      optimizer.step();
      optimizer.zero_grad();
    }
    double flat = 0, slices = 0;
    for (const Tensor& shard : model.flat_parameters())
      flat += shard.detach().abs().sum(at::kDouble).item<double>();
    for (const Tensor& slice : model.parameters())
      slices += slice.detach().abs().sum(at::kDouble).item<double>();
    require(std::abs(flat - slices) <= 1e-9 * flat, "nothing but slices holds values");
  });
}

TEST(Insight, DescribeNamesEverything) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](World& world) {
      auto model = sharded(world, "gpt2", {.precision = bf16()});
      const std::string text = model.describe();
      for (const UnitCounts& unit : model.unit_counts())
        require(text.find("  " + unit.name + ": ") != std::string::npos, unit.name + " in:\n" + text);
      for (const auto& item : model.module().named_parameters()) {
        require(text.find(item.key()) != std::string::npos, item.key() + " in:\n" + text);
        const ParameterInfo info = model.parameter_info(item.key());
        std::string shape = "[";
        for (const int64_t extent : info.shape)
          shape += (shape.size() > 1 ? ", " : "") + std::to_string(extent);
        require(text.find(info.name + " " + shape + "]") != std::string::npos,
                info.name + shape + "] in:\n" + text);
      }
      require(text.find(" = net.") != std::string::npos, "tied names stand together:\n" + text);
      require(text.find(std::to_string(model.num_parameters()) + " parameters") != std::string::npos, text);
      require(text.find("BFloat16") != std::string::npos, "the compute type:\n" + text);
    });
}

TEST(Insight, TrainAndEvalReachTheModule) {
  run_ranks(2, [](World& world) {
    auto model = sharded(world, "convnet");
    require(model.is_training() && model.module().is_training(), "training at first");
    model.eval();
    require(!model.is_training() && !model.module().is_training(), "eval");
    for (const auto& child : model.module().modules()) require(!child->is_training(), "every part of it");
    model.train();
    require(model.is_training(), "train");
    model.train(false);
    require(!model.is_training(), "train(false)");
  });
}

TEST(Insight, ParametersAreTheSameTensorsEveryTime) {
  run_ranks(2, [](World& world) {
    auto model = sharded(world, "mlp");
    const auto before = model.parameters();
    for (int step = 0; step < 2; ++step) train_step(model, world);
    const auto after = model.parameters();
    const auto named = model.named_parameters();
    require(before.size() == after.size() && named.size() == after.size(), "as many");
    for (size_t i = 0; i < before.size(); ++i)
      require(before[i].is_same(after[i]) && named[i].value().is_same(after[i]), "the same");
  });
}

}  // namespace
}  // namespace fsdp::testing
