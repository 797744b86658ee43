// Promise: whole parameters can be read, written and loaded in full_params(), and used by kernels that are no
// operators.
#include <gtest/gtest.h>

#include <sstream>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

void full_params_each_size(const RankBody& body) {
  for (const int ranks : {1, 2, 3}) run_ranks(ranks, body);
}

TEST(FullParams, WritesGoIntoTheShards) {
  full_params_each_size([](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
    {
      const auto whole = model.full_params(/*write_back=*/true);
      const at::NoGradGuard no_grad;
      for (auto& param : model.module().parameters()) param.fill_(0.25);
    }
    for (const auto& [name, value] : state_of(model)) require(value.eq(0.25).all().item<bool>(), name);
    for (const auto& slice : model.parameters()) require(slice.eq(0.25).all().item<bool>(), "slices");
  });
}

TEST(FullParams, WithoutWriteBackNothingChanges) {
  full_params_each_size([](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
    const State before = state_of(model);
    {
      const auto whole = model.full_params();
      const at::NoGradGuard no_grad;
      for (auto& param : model.module().parameters()) param.zero_();
    }
    require_same(state_of(model), before);
  });
}

// torch::load gives every parameter other memory.
TEST(FullParams, AModuleIsLoadedThere) {
  std::stringstream file;
  auto trained = make_learner("mlp");
  const State wanted = train_plain(*trained, 1, 3, Optim::sgd);
  torch::serialize::OutputArchive archive;
  trained->save(archive);
  archive.save_to(file);
  const std::string bytes = file.str();
  full_params_each_size([&](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
    {
      const auto whole = model.full_params(/*write_back=*/true);
      std::stringstream stream(bytes);
      torch::serialize::InputArchive input;
      input.load_from(stream);
      model.module().load(input);
    }
    require_same(state_of(model), wanted);
    const auto loss = model(model.module().batch(world.rank()));
    loss.backward();
    require(loss.isfinite().item<bool>(), "trains on");
  });
}

// What rank 0 alone has; the others keep nothing, and are told so.
TEST(FullParams, OnRank0Only) {
  full_params_each_size([](World& world) {
    auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200)});
    const State wanted = state_of(model);
    {
      const auto whole = model.full_params(FullParamsOptions{.rank0_only = true, .offload = true});
      bool refused = false;
      try {
        require_same(state_of(model.module()), wanted);
      } catch (const c10::Error& error) {
        refused = std::string(error.what()).find("is sharded") != std::string::npos;
      }
      require(refused == (world.rank() > 0), "who reads");
    }
    require(difference(state_of(model), wanted).empty(), "as before");
    train_sharded(model, world, 2, Optim::sgd);
    bool refused = false;
    try {
      const auto whole = model.full_params(FullParamsOptions{.write_back = true, .rank0_only = true});
    } catch (const c10::Error& error) {
      refused = std::string(error.what()).find("rank0_only and write_back") != std::string::npos;
    }
    require(refused, "write_back");
  });
}

TEST(FullParams, OfOneModuleAndInsideEachOther) {
  full_params_each_size([](World& world) {
    auto model = fully_shard(world, make_gpt2(3, 16), {.wrap = by_size(200)});
    const auto h0 = [&] { return model.module().named_parameters()["net.transformer.h.0.mlp.c_fc.weight"]; };
    const auto h1 = [&] { return model.module().named_parameters()["net.transformer.h.1.mlp.c_fc.weight"]; };
    const auto readable = [](const at::Tensor& tensor) {
      try {
        return tensor.detach().sum().isfinite().item<bool>();
      } catch (const c10::Error&) {
        return false;
      }
    };
    const at::NoGradGuard no_grad;
    {
      const auto first =
          model.full_params(FullParamsOptions{.write_back = true, .module = "net.transformer.h.0"});
      require(readable(h0()) && !readable(h1()), "one block");
      {
        const auto all = model.full_params(true);
        require(readable(h0()) && readable(h1()), "all blocks");
        h0().fill_(2);
        h1().fill_(3);
      }
      require(readable(h0()) && !readable(h1()), "one block again");
      require(model.training_state() == TrainingState::summon_full_params, "state");
    }
    require(!readable(h0()) && model.training_state() == TrainingState::idle, "none");
    const auto all = model.full_params();
    require(h0().eq(2).all().item<bool>() && h1().eq(3).all().item<bool>(), "written back");
    bool refused = false;
    try {
      const auto none = model.full_params(FullParamsOptions{.module = "no.such"});
    } catch (const c10::Error& error) {
      refused = std::string(error.what()).find("'no.such'") != std::string::npos;
    }
    require(refused, "an unknown path");
  });
}

TEST(GpuFullParams, OffloadedParametersAreInHostMemory) {
  run_on_gpus(2, [](World& world) {
    for (const Precision& precision : {fp32(), bf16()}) {
      auto model = fully_shard(world, make_learner("mlp"), {.wrap = by_size(200), .precision = precision});
      train_sharded(model, world, 3, Optim::sgd);
      State wanted = state_of(model);
      {
        const auto whole = model.full_params(FullParamsOptions{.write_back = true, .offload = true});
        for (auto& [name, value] : state_of(model.module())) {
          require(value.is_cpu() && value.scalar_type() == at::kFloat, name + " is in host memory");
          require(at::equal(value, wanted.at(name).cpu()), name);
        }
        const at::NoGradGuard no_grad;
        for (auto& param : model.module().parameters()) param.mul_(2);
      }
      for (const auto& [name, value] : state_of(model)) require(at::equal(value, wanted.at(name) * 2), name);
      train_sharded(model, world, 3, Optim::sgd);
    }
  });
}

struct RawReader : torch::nn::Module {
  RawReader() { weight = register_parameter("weight", torch::arange(6.0)); }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto held = use(weight);
    const auto* data = weight.const_data_ptr<float>();
    float sum = 0;
    for (int64_t i = 0; i < weight.numel(); ++i) sum += data[i];
    return x + sum;
  }
  torch::Tensor weight;
};

TEST(FullParams, UseHoldsAParameterForARawKernel) {
  full_params_each_size([](World& world) {
    auto model = fully_shard(world, std::make_shared<RawReader>());
    require(model(torch::zeros({1})).item<float>() == 15, "0 + 1 + ... + 5");
    bool refused = false;
    try {
      const auto held = use(model.module().weight);
    } catch (const c10::Error& error) {
      refused = std::string(error.what()).find("is sharded") != std::string::npos;
    }
    require(refused, "outside of the model it is refused");
  });
}

TEST(FullParams, WeightsTiedBySetDataAreRefused) {
  run_ranks(2, [](World& world) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    net[1]->as<torch::nn::Linear>()->weight.set_data(net[0]->as<torch::nn::Linear>()->weight);
    std::string said;
    try {
      auto model = fully_shard(world, net);
    } catch (const c10::Error& error) {
      said = error.what();
    }
    require(said.find("share memory but are two tensors") != std::string::npos, said);
  });
}

}  // namespace
}  // namespace fsdp::testing
