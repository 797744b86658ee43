// Two layers that are sharded and three parameters that are not, with optimizers over any of them.
#pragma once

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "support/learners.h"
#include "support/ranks.h"

namespace fsdp::testing {

// `image` is channels last and `turned` is transposed: neither is row-major.
struct LayersNet : torch::nn::Module {
  LayersNet() {
    const SeededHere seeded(5);
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
    image =
        register_parameter("image", torch::randn({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast));
    turned = register_parameter("turned", torch::randn({3, 5}).t());
    plain = register_parameter("plain", torch::randn({4, 3}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(torch::tanh(first(x * turned.mean()))) + image.square().mean({1, 2, 3}).sum() + plain;
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor image, turned, plain;
};

// Every rank sees the same batch, so ignored parameters are the same on all of them.
inline at::Tensor layers_batch(int64_t number) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(number) + 11);
  return torch::randn({4, 5}, generator);
}

inline Sharded<LayersNet> shard_layers(const World& world) {
  return fully_shard(world, std::make_shared<LayersNet>(),
                     {.wrap = by_type<torch::nn::LinearImpl>(), .ignored = {"image", "turned", "plain"}});
}

// Slices of the layers, then the parameters that are ignored.
inline std::vector<at::Tensor> all_params(const Sharded<LayersNet>& model) {
  std::vector<at::Tensor> params = model.parameters();
  for (const char* name : {"image", "turned", "plain"})
    params.push_back(model.module().named_parameters()[name]);
  return params;
}

template <class Optimizer>
void train_layers(Sharded<LayersNet>& model, Optimizer& optimizer, int64_t step) {
  model(layers_batch(step)).square().mean().backward();
  optimizer.step();
  optimizer.zero_grad();
}

inline torch::optim::AdamWParamState& adam_state(torch::optim::Optimizer& optimizer,
                                                 const at::Tensor& param) {
  return static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(param.unsafeGetTensorImpl()));
}

// Equal bits of all parameters and of what AdamW keeps of them.
inline void require_same(const std::vector<at::Tensor>& got, torch::optim::Optimizer& got_by,
                         const std::vector<at::Tensor>& wanted, torch::optim::Optimizer& wanted_by) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string which = "parameter " + std::to_string(i);
    require(got[i].equal(wanted[i]), which);
    if (wanted[i].numel() == 0) continue;
    const auto& mine = adam_state(got_by, got[i]);
    const auto& theirs = adam_state(wanted_by, wanted[i]);
    require(mine.step() == theirs.step(), which + ": steps");
    require(mine.exp_avg().equal(theirs.exp_avg()), which + ": exp_avg");
    require(mine.exp_avg_sq().equal(theirs.exp_avg_sq()), which + ": exp_avg_sq");
  }
}

// The words of a CheckpointError; "not refused" when there is none.
template <class Fn>
std::string checkpoint_error(Fn fn) {
  try {
    fn();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "not refused";
}

}  // namespace fsdp::testing
