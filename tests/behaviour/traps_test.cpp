// Promise: what is hard to see from outside an operator is seen all the same; what cannot be right is refused
// in words.
#include <gmock/gmock.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

template <class Fn>
void on_nets(const std::vector<int>& sizes, Fn&& fn) {
  for (const int ranks : sizes) {
    run_ranks(ranks, [&](World& world) {
      auto net = make_seeded(make_net);
      fn(world, net);
    });
  }
}

std::vector<Variant> by_modules() {
  return {{"modules", sharded_by(by_size(1))}, {"whole", sharded_by(whole_model())}};
}

struct OddParametersImpl : torch::nn::Module {
  OddParametersImpl() {
    words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 6).sparse(true)));
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 2)));
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    scale = register_parameter("scale", torch::tensor(0.5F));
    nothing = register_parameter("nothing", torch::zeros({0, 6}));
    order = register_parameter("order", torch::tensor({2, 0, 1}), /*requires_grad=*/false);
    turned = register_parameter("turned", torch::randn({6, 5}).t().clone());
    table = register_parameter("table", torch::randn({9, 6}));
  }
  Tensor forward(const Tensor& ids, const Tensor& image) {
    Tensor h = torch::cat({words(ids), nothing}, 0) * scale;
    TORCH_CHECK(conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
    const Tensor picture = conv(image.index({torch::indexing::Slice(), order})).mean();
    Tensor put = torch::zeros({4, 6}).index_put({torch::tensor({1, 3})}, table.index({ids.slice(0, 0, 2)}));
    put = put + table.index({order}).sum() + torch::einsum("ij,kj->ki", {table, h})[0][0];
    return torch::linear(h + put, turned).square().mean() + picture.square() + h.mean();
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Conv2d conv{nullptr};
  Tensor scale, nothing, order, turned, table;
};

TEST(Traps, SparseZeroDimEmptyChannelsLastAndIndexedParameters) {
  expect_same([] { return std::make_shared<OddParametersImpl>(); },
              [](auto& model, const Moment& now) {
                model.backward(model(now.randint(9, {4}), now.randn({2, 3, 5, 5})));
              },
              by_modules());
}

TEST(Traps, StridesStayAsTheyWere) {
  run_ranks(2, [](World& world) {
    auto module = std::make_shared<OddParametersImpl>();
    auto model = fully_shard(world, module);
    require(module->conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast),
            "a sharded one is channels-last");
    const auto whole = model.full_params();
    require(module->conv->weight.is_contiguous(at::MemoryFormat::ChannelsLast),
            "a whole one is channels-last");
    require(module->turned.stride(0) == 1, "a transposed one is transposed");
  });
}

struct SequencesImpl : torch::nn::Module {
  SequencesImpl() {
    using namespace torch::nn;
    lstm = register_module("lstm", LSTM(LSTMOptions(6, 8).num_layers(2).bidirectional(true)));
    gru = register_module("gru", GRU(GRUOptions(16, 8)));
    attention = register_module("attention", MultiheadAttention(MultiheadAttentionOptions(8, 2)));
    encoder = register_module(
        "encoder",
        TransformerEncoder(TransformerEncoderOptions(
            TransformerEncoderLayer(TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0)),
            2)));
    batch_norm = register_module("batch_norm", BatchNorm1d(8));
    batch_norm->eval();
  }
  Tensor forward(const Tensor& x) {
    const auto packed = torch::nn::utils::rnn::pack_padded_sequence(x, torch::tensor({5, 3, 2}));
    const Tensor lasting = std::get<0>(
        torch::nn::utils::rnn::pad_packed_sequence(std::get<0>(lstm->forward_with_packed_input(packed))));
    Tensor h = std::get<0>(gru(lasting));
    h = std::get<0>(attention(h, h, h));
    return batch_norm(encoder(h).flatten(0, 1)).square().mean();
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::GRU gru{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  torch::nn::TransformerEncoder encoder{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
};

TEST(Traps, RecurrentAndAttentionModules) {
  expect_same([] { return std::make_shared<SequencesImpl>(); },
              [](auto& model, const Moment& now) {
                model.backward(model(now.randn({5, 3, 6})));
              },
              by_modules());
}

TEST(Traps, OperatorsOverManyUnitsAtOnce) {
  std::vector<Variant> variants;
  for (const int limit : {1, 2, 0}) {
    variants.push_back({"limit " + std::to_string(limit), sharded_by(by_type<BlockImpl>())});
    variants.back().options.limit_all_gathers = limit;
  }
  expect_same(
      make_net,
      [](auto& model, const Moment& now) {
        const Tensor y = model.run([&](NetImpl& net) {
          std::vector<Tensor> ups, halves;
          for (auto& block : net.blocks) ups.push_back(block->up->weight);
          for (const Tensor& half : at::_foreach_mul(net.parameters(), 0.5)) halves.push_back(half.sum());
          Tensor h = net.in(now.randn({4, 6}));
          h = torch::linear(h, torch::cat(ups)).sum() + torch::einsum("ij,kj,kl->il", ups) + h.sum();
          return h.mean() + torch::stack(halves).sum();
        });
        model.backward(y.square());
      },
      variants);
}

// Runs forward again in backward.
struct Again : torch::autograd::Function<Again> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, NetImpl* net) {
    context->save_for_backward({x});
    context->saved_data["net"] = reinterpret_cast<int64_t>(net);
    const torch::NoGradGuard no_grad;
    return joined_blocks(x, *net);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode grad(true);
    const Tensor y = joined_blocks(x, *reinterpret_cast<NetImpl*>(context->saved_data["net"].toInt()));
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), Tensor()};
  }
  static Tensor joined_blocks(const Tensor& x, NetImpl& net) {
    std::vector<Tensor> ups;
    for (auto& block : net.blocks) ups.push_back(block->up->weight);
    return torch::linear(x, torch::cat(ups));
  }
};

TEST(Traps, MemoryDoesNotGrowWhenEveryStepNeedsMoreUnitsThanSlots) {
  on_nets({2, 3}, [](World& world, std::shared_ptr<NetImpl>& net) {
    auto model = fully_shard(world, net, sharded_by(by_type<BlockImpl>()));
    int64_t bytes = 0;
    for (int s = 0; s < 12; ++s) {
      model.zero_grad();
      const Moment now{s, world.rank(), world.size()};
      model.run([&](NetImpl& m) {
             return Again::apply(now.randn({4, 8}).requires_grad_(), &m);
           })
          .square()
          .mean()
          .backward();
      if (s == 4) bytes = model.memory_stats().buffer_bytes;
    }
    const int64_t after = model.memory_stats().buffer_bytes;
    require(after == bytes,
            "gradient buffers of " + std::to_string(after) + " bytes are still " + std::to_string(bytes));
  });
}

// A view taken while released, a copy of the handle: all see the values inside a call.
TEST(Traps, ViewsAndAliasesTakenWhileReleasedSeeTheValues) {
  expect_same(make_net, [](auto& model, const Moment& now) {
    model.see(model.run([&](NetImpl& net) {
      const torch::NoGradGuard no_grad;
      const Tensor& w = net.blocks[1]->up->weight;
      const Tensor alias = w.data();
      const Tensor row = w.detach().t()[0];
      return w.ravel().sum() + w.sum() + w.reshape_as(w).mean() + w.mean() + alias.sum() + row.sum() +
             w.expand_as(w).contiguous().sum() + w.t().reshape({-1})[1] + w.data().sum() + w[0][0];
    }));
    model.backward(loss_of(model(now.randn({4, 6}))));
  });
}

TEST(Traps, AnOptimizerStepBetweenForwardAndBackwardIsRefused) {
  on_nets({1, 2}, [](World& world, std::shared_ptr<NetImpl>& net) {
    auto model = fully_shard(world, net, sharded_by(by_size(100)));
    const auto optimizer = make_optimizer(Optim::decaying_adamw, model.parameters());
    loss_of(model(torch::ones({4, 6}) * (world.rank() + 1))).backward();
    const Tensor loss = loss_of(model(torch::ones({4, 6}) * (world.rank() + 1)));
    optimizer->step();
    require_words(refusal([&] { loss.backward(); }), "modified by an inplace operation");
  });
}

TEST(Traps, AnOptimizerStepIsNoticedByTheFirstOperatorOfBackward) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](World& world) {
      auto linear = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(6, 4));
      auto model = fully_shard(world, linear);
      const auto optimizer = make_optimizer(Optim::decaying_adamw, model.parameters());
      const auto x = (torch::ones({4, 6}) * (world.rank() + 1)).requires_grad_();
      loss_of(model(x)).backward();
      const Tensor loss = loss_of(model(x));
      optimizer->step();
      require_words(refusal([&] { loss.backward(); }), "modified by an inplace operation");
    });
  }
}

TEST(Traps, GradOverParametersIsRefused) {
  on_nets({1, 2}, [](World& world, std::shared_ptr<NetImpl>& net) {
    auto model = fully_shard(world, net, sharded_by(by_type<BlockImpl>()));
    const Tensor loss = loss_of(model(torch::ones({4, 6}) * (world.rank() + 1)));
    require_words(refusal([&] { torch::autograd::grad({loss}, {net->in->weight}, {}, true); }),
                  "autograd::grad");
    require(model.last_error() != nullptr, "last_error() has it");
    loss.backward();
    require(model.parameters().back().grad().defined(), "training goes on");
  });
}

TEST(Traps, RawAccessToAShardedParameterIsRefusedInWords) {
  on_nets({2}, [](World& world, std::shared_ptr<NetImpl>& net) {
    auto model = fully_shard(world, net);
    model(torch::ones({4, 6}) * (world.rank() + 1)).sum().backward();
    require_words(refusal([&] { (void)net->in->weight.data_ptr(); }), "'in.weight' is sharded");
    require_words(refusal([&] { (void)net->in->weight.const_data_ptr<float>(); }), "'in.weight' is sharded");
    require_words(refusal([&] { (void)net->in->weight.sum(); }), "'in.weight' is sharded");
    require_words(refusal([&] { (void)net->forward(torch::ones({4, 6})); }), "is sharded");
    require_words(refusal([&] { (void)net->in->weight.t().contiguous(); }), "'in.weight' is sharded");
    model.run([&](NetImpl& m) {
      const torch::NoGradGuard no_grad;
      require_words(refusal([&] { m.in->weight.clamp_(0, 1); }), "written inside forward");
      require_words(refusal([&] { at::_foreach_mul_(m.parameters(), 2); }), "written inside forward");
      return m.in->weight.sum();
    });
  });
}

// The number of threads is a thread's own: ranks set it themselves.
TEST(Traps, ManyThreadsInsideOperators) {
  const auto make = [] {
    return std::make_shared<torch::nn::LSTMImpl>(torch::nn::LSTMOptions(64, 128).num_layers(2));
  };
  expect_same(make,
              [](auto& model, const Moment& now) {
                at::set_num_threads(2);
                model.backward(std::get<0>(model(now.randn({16, 32, 64}))).square().mean());
              },
              by_modules(), {.steps = 3, .ranks = {1, 2}});
}

}  // namespace
}  // namespace fsdp::testing
