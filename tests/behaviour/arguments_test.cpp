// Promise: the handle takes what forward takes, and tensors in it are cast wherever they are.
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/training.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

struct TakesSomething : torch::nn::Module {
  TakesSomething() {
    const SeededHere seeded(4);
    layer = register_module("layer", torch::nn::Linear(3, 3));
  }
  torch::nn::Linear layer{nullptr};
};

// forward, in every way a signature can be written.
struct ByValue : TakesSomething {
  Tensor forward(Tensor x) { return layer(x); }
};
struct ByConstReference : TakesSomething {
  Tensor forward(const Tensor& x) { return layer(x); }
};
struct ByReference : TakesSomething {
  Tensor forward(Tensor& x) { return layer(x); }
};
struct ByRvalue : TakesSomething {
  Tensor forward(Tensor&& x) { return layer(x); }
};
struct WithDefault : TakesSomething {
  Tensor forward(const Tensor& x, double scale = 1.0, const std::optional<Tensor>& bias = {}) {
    return layer(x) * scale + (bias ? *bias : torch::zeros({3}));
  }
};
struct Mixed : TakesSomething {
  Tensor forward(Tensor& x, const Tensor& y, Tensor z, int64_t& calls) {
    ++calls;
    return layer(x) + y * 0 + z * 0;
  }
};
struct ListByReference : TakesSomething {
  Tensor forward(std::vector<Tensor>& batch) {
    batch.push_back(batch[0]);
    return layer(batch[0]);
  }
};
struct OutByReference : TakesSomething {
  Tensor forward(const Tensor& x, Tensor& hidden) {
    hidden = layer(x);
    return hidden;
  }
};
struct AnyForward : TakesSomething {
  template <class T>
  Tensor forward(T&& x) {
    return layer(x);
  }
};

template <class Net>
Sharded<Net> sharded(World& world, const ShardOptions& options = {}) {
  return fully_shard(world, std::make_shared<Net>(), options);
}

TEST(Arguments, EverySignatureOfForwardCanBeCalled) {
  run_ranks(2, [](World& world) {
    Tensor x = torch::ones({2, 3}) * (1 + world.rank());
    const Tensor constant = x;
    const auto plain = std::make_shared<ByValue>();
    const Tensor wanted = plain->forward(x);
    const auto same = [&](const Tensor& found, const char* what) {
      require(found.equal(wanted), what);
      found.sum().backward();
    };
    auto by_value = sharded<ByValue>(world);
    same(by_value(x), "T, of a variable");
    same(by_value(constant), "T, of a constant");
    same(by_value(x.clone()), "T, of a temporary");
    auto by_const = sharded<ByConstReference>(world);
    same(by_const(x), "const T&, of a variable");
    same(by_const(constant), "const T&, of a constant");
    same(by_const(x.clone()), "const T&, of a temporary");
    same(sharded<ByReference>(world)(x), "T&");
    auto by_rvalue = sharded<ByRvalue>(world);
    same(by_rvalue(x.clone()), "T&&, of a temporary");
    same(by_rvalue(x), "T&&, of a variable");
    auto defaults = sharded<WithDefault>(world);
    same(defaults(x), "all defaults");
    same(defaults(x, 1.0), "one default");
    same(defaults(x, 1.0, torch::zeros({3})), "no default");
    int64_t calls = 0;
    same(sharded<Mixed>(world)(x, constant, x.clone(), calls), "a mix");
    require(calls == 1, "what is no tensor is the caller's own");
    std::vector<Tensor> batch{x};
    same(sharded<ListByReference>(world)(batch), "a list by reference");
    require(batch.size() == 2, "the list is the caller's own");
    Tensor hidden;
    same(sharded<OutByReference>(world)(x, hidden), "a result by reference");
    require(hidden.defined() && hidden.equal(wanted), "the result is in the caller's variable");
    same(sharded<AnyForward>(world)(x), "a template");
  });
}

// What is passed by reference is cast in place; the rest stays as the caller has it.
TEST(Arguments, OnlyWhatIsTakenByReferenceIsCastInPlace) {
  run_ranks(2, [](World& world) {
    Tensor x = torch::ones({2, 3}), y = torch::ones({2, 3}), z = torch::ones({2, 3});
    int64_t calls = 0;
    sharded<Mixed>(world, {.precision = bf16()})(x, y, z, calls);
    require(x.scalar_type() == torch::kBFloat16, "by reference");
    require(y.scalar_type() == torch::kFloat && z.scalar_type() == torch::kFloat, "by value");
  });
}

}  // namespace
}  // namespace fsdp::testing
