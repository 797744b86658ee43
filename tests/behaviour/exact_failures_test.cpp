// Promise: what fails in a program fails at once, where it happens and in its own words, and leaves the model
// as it was.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"
#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

// The others sleep before their forward; the error of this rank's own does not wait for them.
TEST(ExactFailures, AnErrorInForwardReachesItsOwnerAtOnce) {
  std::string told;
  try {
    run_processes(2, [](World& world) {
      auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
      const Tensor x = Moment{}.randn({4, 6});
      for (int s = 0; s < 3; ++s) loss_of(model(x)).backward();
      model.zero_grad();
      detail::Clock::time_point thrown;
      try {
        model
            .run([&](NetImpl& net) {
              Tensor h = net.in(x);
              thrown = detail::Clock::now();
              if (world.rank() == 1) throw std::runtime_error("sample 17 is corrupt");
              std::this_thread::sleep_for(std::chrono::seconds(3));
              for (auto& block : net.blocks) h = block(h);
              return loss_of(net.out(h));
            })
            .backward();
      } catch (const std::runtime_error&) {
        require(world.rank() == 0 || detail::elapsed_since(thrown) < std::chrono::seconds(1),
                "the error waits for nobody");
        throw;
      }
    });
  } catch (const std::exception& error) {
    told = error.what();
  }
  EXPECT_NE(told.find("sample 17 is corrupt"), std::string::npos) << told;
}

// A call inside a call, whose error the outer one catches: nothing has failed.
TEST(ExactFailures, AnErrorThatForwardItselfCatchesIsNoFailure) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
    const Tensor x = Moment{}.randn({4, 6});
    for (int s = 0; s < 3; ++s) {
      const Tensor loss = model.run([&](NetImpl& net) {
        try {
          model.run([](NetImpl&) { throw std::runtime_error("caught inside"); });
        } catch (const std::runtime_error&) {
        }
        return loss_of(net.forward(x));
      });
      require(model.training_state() == TrainingState::forward_backward,
              "the outer call goes on to backward");
      loss.backward();
      model.zero_grad();
    }
  });
}

TEST(ExactFailures, ManyRanksHearTheFirstCause) {
  for (int round = 0; round < repeats(5, 20); ++round) {
    std::string told;
    try {
      run_processes(4, [](World& world) {
        auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
        for (int s = 0; s < 4; ++s) {
          model
              .run([&](NetImpl& net) {
                const Tensor h = net.in(Moment{}.randn({4, 6}));
                if (s == 2 && world.rank() == 2) throw std::runtime_error("sample 17 is corrupt");
                return loss_of(net.out(net.blocks[0](h)));
              })
              .backward();
          model.zero_grad();
        }
      });
    } catch (const std::exception& error) {
      told = error.what();
    }
    EXPECT_NE(told.find("rank 2 of 4 failed"), std::string::npos) << told;
    EXPECT_NE(told.find("sample 17 is corrupt"), std::string::npos) << told;
  }
}

// Allocations of at least `from` bytes fail.
class NoMemory final : public c10::Allocator {
 public:
  NoMemory(c10::Allocator* next, size_t from) : next_(next), from_(from) {}
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(bytes < from_, "no memory for ", bytes, " bytes");
    return next_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return next_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }

 private:
  c10::Allocator* next_;
  size_t from_;
};

TEST(ExactFailures, FullParamsWithoutMemoryLeavesTheModelAsItWas) {
  run_processes(1, [](World& world) {
    auto net = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(8, 8), torch::nn::Linear(8, 300),
                                                           torch::nn::Linear(300, 8));
    ShardOptions options = sharded_by(by_size(1));
    options.precision = bf16();
    auto model = fully_shard(world, net, options);
    const Tensor x = Moment{}.randn({4, 8});
    const Tensor before = model.operator()(x);
    c10::Allocator* usual = c10::GetCPUAllocator();
    NoMemory none(usual, 9000);
    c10::SetCPUAllocator(&none, /*priority=*/255);
    std::string told = refusal([&] { const auto whole = model.full_params(); });
    c10::SetCPUAllocator(usual, /*priority=*/255);
    require_words(told, "no memory for");
    require(model(x).equal(before), "the model computes as before");
    { const auto whole = model.full_params(); }
    require(model(x).equal(before), "and full_params() works again");
  });
}

}  // namespace
}  // namespace fsdp::testing
