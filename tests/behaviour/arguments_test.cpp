// Promise: the handle takes what forward takes, and tensors in it are cast wherever they are.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <unordered_map>

#include "support/ranks.h"
#include "support/training.h"

namespace arguments_test {

// A batch of the user's own, with a function beside it that lists its tensors.
struct Listed {
  at::Tensor x;
  std::vector<at::Tensor> more;
  int64_t count = 0;
};
template <class Fn>
void fsdp_each_tensor(Listed& batch, Fn fn) {
  fn(batch.x), fn(batch.more);
}

// One without: it passes as it is.
struct Unlisted {
  at::Tensor x;
};

}  // namespace arguments_test

namespace fsdp::testing {
namespace {

using arguments_test::Listed;
using arguments_test::Unlisted;
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

// Says of which type the tensors are that arrive.
struct Types : TakesSomething {
  template <class Holder>
  Tensor forward(const Holder& holder) {
    if constexpr (requires { holder.x; })
      seen = {holder.x.scalar_type()};
    else if constexpr (requires {
                         holder.data;
                         holder.target;
                       })
      seen = {holder.data.scalar_type(), holder.target.scalar_type()};
    else
      for (const auto& one : holder) add(one);
    if constexpr (requires { holder.more; })
      for (const Tensor& one : holder.more) add(one);
    return layer(torch::ones({1, 3}, torch::kBFloat16));
  }
  void add(const Tensor& tensor) { seen.push_back(tensor.scalar_type()); }
  template <class K>
  void add(const std::pair<K, Tensor>& item) {
    add(item.second);
  }
  std::vector<at::ScalarType> seen;
};

TEST(Arguments, FloatingTensorsInContainersAreCast) {
  run_ranks(2, [](World& world) {
    auto model = sharded<Types>(world, {.precision = bf16()});
    const Tensor x = torch::ones({1, 3}), ids = torch::ones({2}, torch::kLong);
    const std::vector<at::ScalarType> cast{torch::kBFloat16, torch::kLong};
    const auto require_types = [&](std::vector<at::ScalarType> wanted, const char* what) {
      std::vector<at::ScalarType> seen = std::exchange(model.module().seen, {});
      std::sort(seen.begin(), seen.end());
      std::sort(wanted.begin(), wanted.end());
      require(seen == wanted, what);
    };
    model(std::vector<Tensor>{x, ids});
    require_types(cast, "vector");
    model(std::array<Tensor, 2>{x, ids});
    require_types(cast, "array");
    model(std::map<std::string, Tensor>{{"x", x}, {"ids", ids}});
    require_types(cast, "map");
    const std::unordered_map<std::string, Tensor> unordered{{"x", x}, {"ids", ids}};
    model(unordered);
    require_types(cast, "unordered_map");
    model(torch::data::Example<>{x, ids});
    require_types(cast, "Example");
    model(Listed{.x = x, .more = {ids}});
    require_types(cast, "a type with fsdp_each_tensor()");
    model(Unlisted{x});
    require_types({torch::kFloat}, "a type without passes as it is");
    require(unordered.at("x").scalar_type() == torch::kFloat && x.scalar_type() == torch::kFloat,
            "the caller's own stay");
  });
}

}  // namespace
}  // namespace fsdp::testing
