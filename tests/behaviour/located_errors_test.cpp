// Promise: an error inside a sharded model says which operator of which parameter threw it, and peers hear
// it.
#include <gmock/gmock.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

std::string words_of(const std::function<void()>& does) {
  try {
    does();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

struct OddImpl : torch::nn::Module {
  OddImpl() {
    one = register_module("one", torch::nn::Linear(6, 8));
    two = register_module("two", torch::nn::Linear(8, 4));
  }
  Tensor forward(const Tensor& x, bool bad_sum) {
    const Tensor h = one(x);
    return two(bad_sum ? h + torch::ones({3, 3}) : h);
  }
  torch::nn::Linear one{nullptr}, two{nullptr};
};
TORCH_MODULE(Odd);

// With the type that LibTorch gave it.
TEST(LocatedErrors, NameTheOperatorAndTheParameter) {
  run_ranks(2, [](World& world) {
    for (const int warm_up : {0, 3}) {  // on demand, and by plan
      auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
      for (int i = 0; i < warm_up; ++i) loss_of(model(net_batch(i))).backward();
      const std::string words = words_of([&] { model(torch::ones({4, 7})); });
      require_words(words, "cannot be multiplied (4x7 and 6x8)");
      require_words(words, "in aten::addmm, which reads parameter 'in.");
      const std::string lookup = words_of([&] {
        model.run([](NetImpl& net) { return torch::embedding(net.out->weight, torch::full({1}, 99)); });
      });
      require_words(lookup, "which reads parameter 'out.weight'");
    }
  });
}

TEST(LocatedErrors, NameTheUnitWhereNoParameterIsRead) {
  run_ranks(2, [](World& world) {
    auto model = fully_shard(world, Odd(), {.wrap = by_type<torch::nn::LinearImpl>()});
    const std::string words = words_of([&] { model(torch::ones({4, 6}), true); });
    require_words(words, "must match the size");
    require_words(words, "after operators that read unit 'one'");
    model(torch::ones({4, 6}), false).sum().backward();  // and the model goes on
  });
}

// x -> x W^T with a backward that is wrong about shapes.
struct WrongBackward : torch::autograd::Function<WrongBackward> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weight) {
    ctx->save_for_backward({weight});
    return x.mm(weight.t());
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* ctx,
                                      const std::vector<Tensor>& grads) {
    return {grads[0].mm(ctx->get_saved_variables()[0].t()), Tensor()};
  }
};

TEST(LocatedErrors, NameTheParameterInBackward) {
  run_ranks(1, [](World& world) {
    auto model = fully_shard(world, Odd(), {.wrap = by_type<torch::nn::LinearImpl>()});
    const Tensor y = model.run([](OddImpl& net) {
      return WrongBackward::apply(net.one(torch::ones({4, 6})), net.two->weight);
    });
    const std::string words = words_of([&] { y.sum().backward(); });
    require_words(words, "in aten::mm, which reads parameter 'two.weight'");
  });
}

// What the library itself refuses says enough.
TEST(LocatedErrors, LeaveOurOwnErrorsAlone) {
  run_ranks(1, [](World& world) {
    auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
    const std::string words = words_of([&] {
      model.run([](NetImpl& net) {
        const torch::NoGradGuard no_grad;
        net.in(torch::ones({4, 6}));
        net.in->weight.zero_();
      });
    });
    require_words(words, "is written inside forward");
    require(words.find("after operators that read") == std::string::npos, words);
  });
}

// FSDP_LOG=debug says what sharding and plans did; the level is read when ranks start.
TEST(LocatedErrors, DebugLinesSayWhatWasShardedAndPlanned) {
  const ScopedEnv level("FSDP_LOG", "debug");
  ::testing::internal::CaptureStderr();
  run_local(2, [](World& world) {
    auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
    for (int i = 0; i < 2; ++i) loss_of(model(net_batch(i))).backward();
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  for (const char* words : {"fsdp: debug: sharded fsdp::testing::NetImpl", "block1",
                            "rank 0, in its 2nd forward, planned", "rank 1, in its 2nd forward, planned"})
    EXPECT_THAT(said, ::testing::HasSubstr(words));
}

TEST(LocatedErrors, PeersHearThem) {
  run_processes(2, [](World& world) {
    auto model = fully_shard(world, make_same_net(), sharded_by(by_type<BlockImpl>()));
    loss_of(model(net_batch(0))).backward();
    const std::string words = words_of([&] {
      loss_of(model(torch::ones({4, world.rank() == 1 ? 7 : 6}))).backward();
    });
    require_words(words, "which reads parameter 'in.");
    if (world.rank() == 0) require_words(words, "rank 1");
  });
}

}  // namespace
}  // namespace fsdp::testing
