// Promise: a peer that leaves and a handle that is dropped are answered in words, with the error's own type.
#include <gmock/gmock.h>

#include "behaviour/small_net.h"

namespace fsdp::testing {
namespace {

using at::Tensor;

// What `fn` throws: "CommError", the words of a c10::Error, or "not refused".
template <class Fn>
std::string thrown(Fn&& fn) {
  try {
    return refusal(fn);
  } catch (const CommError&) {
    return "CommError";
  }
}

bool is_comm_error(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

Tensor data_of(const World& world) { return torch::ones({4, 6}) * (world.rank() + 1); }

// Rank 1 trains `steps` steps and leaves; `fn` is what rank 0 then does.
template <class Fn>
void left_alone(int steps, Fn&& fn) {
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
    for (int s = 0; s < steps; ++s) loss_of(model(data_of(world))).backward();
    if (world.rank() == 0) fn(world, model);
  });
}

TEST(Traps, ALostPeerComesOutOfTheModelAsCommError) {
  for (const int steps : {0, 1, 3})
    left_alone(steps, [](World& world, Sharded<NetImpl>& model) {
      for (int i = 0; i < 2; ++i) {
        const std::string got = thrown([&] { model(data_of(world)); });
        require(got == "CommError", "a CommError, not '" + got + "', comes out of the model");
        require(is_comm_error(model.last_error()), "last_error() has it");
      }
    });
}

TEST(Traps, ALostPeerComesOutOfBackwardInWordsAndOutOfLastError) {
  for (const int steps : {0, 1, 3}) {
    run_ranks(2, [&](World& world) {
      auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
      for (int s = 0; s < steps; ++s) loss_of(model(data_of(world))).backward();
      const Tensor loss = loss_of(model(data_of(world)));
      if (world.rank() == 1) return;
      const std::string got = thrown([&] { loss.backward(); });
      require(got == "CommError" || got.find("rank 1") != std::string::npos, "'" + got + "' names rank 1");
      require(is_comm_error(model.last_error()), "last_error() has the type");
      const std::string again = thrown([&] { model(data_of(world)); });
      require(again == "CommError", "a CommError, not '" + again + "', comes out of the model afterwards");
    });
  }
}

TEST(Traps, ARankThatThrowsAndLeavesIsNamedToTheOthers) {
  run_ranks(3, [&](World& world) {
    auto model = fully_shard(world, make_seeded(make_net), sharded_by(by_type<BlockImpl>()));
    loss_of(model(data_of(world))).backward();
    if (world.rank() == 2) {
      const auto failing = [&] { model.run([](NetImpl&) { throw std::out_of_range("of the user"); }); };
      EXPECT_THROW(failing(), std::out_of_range);
      return;
    }
    try {
      model(data_of(world));
      require(false, "a rank that left is noticed");
    } catch (const CommError& error) {
      require(error.details().fault == CommFault::peer_left, "it has left");
    }
  });
}

TEST(Traps, ALossMayOutliveItsModel) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](World& world) {
      Tensor loss;
      {
        auto model = fully_shard(world, make_seeded(make_net));
        loss = loss_of(model(data_of(world)));
      }
      const std::string got = thrown([&] { loss.backward(); });
      require(got.find("fsdp: ") != std::string::npos, "'" + got + "' is a refusal in our words");
    });
  }
}

TEST(Traps, AModuleMayOutliveItsModel) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](World& world) {
      auto net = make_seeded(make_net);
      Tensor view;
      {
        auto model = fully_shard(world, net);
        view = net->in->weight.t();
        loss_of(model(data_of(world))).backward();
      }
      for (const auto& fn : std::vector<std::function<void()>>{
               [&] { net->forward(data_of(world)); }, [&] { (void)net->in->weight.data_ptr(); },
               [&] { (void)net->in->weight.sum(); }, [&] { (void)view.sum(); },
               [&] { (void)view.data_ptr(); }, [&] { fully_shard(world, net); }}) {
        const std::string got = thrown(fn);
        require(got.find("fsdp: ") != std::string::npos, "'" + got + "' is a refusal in our words");
      }
      net->in->weight.requires_grad();
    });
  }
}

TEST(Traps, AModelMayOutliveTheModulesHandle) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](World& world) {
      auto mine = make_seeded(make_net);
      auto model = fully_shard(world, mine);
      mine.reset();
      const ShardedModel base = model;
      for (int i = 0; i < 3; ++i) loss_of(model(data_of(world))).backward();
      require(base.parameters().front().grad().defined(), "it trains");
    });
  }
}

TEST(Traps, AParameterHandleMayOutliveEverything) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](World& world) {
      auto mine = make_seeded(make_net);
      std::vector<Tensor> slices, grads;
      {
        auto model = fully_shard(world, std::exchange(mine, nullptr));
        loss_of(model(data_of(world))).backward();
        slices = model.parameters();
        for (const Tensor& slice : slices) grads.push_back(slice.grad());
      }
      for (size_t i = 0; i < slices.size(); ++i)
        require((slices[i] + grads[i]).sum().isfinite().item<bool>(), "slices are still readable");
    });
  }
}

TEST(Traps, AModelThatIsRefusedLeavesTheOtherAsItWas) {
  run_ranks(2, [&](World& world) {
    auto net = make_seeded(make_net);
    auto model = fully_shard(world, net, sharded_by(whole_model()));
    const std::string got = thrown([&] { const auto refused = fully_shard(world, net->blocks[0]); });
    require(got.find("fsdp: ") != std::string::npos, "'" + got + "' is a refusal in our words");
    for (int i = 0; i < 2; ++i) loss_of(model(data_of(world))).backward();
    require(model.parameters().front().grad().defined(), "the model trains on");
  });
}

}  // namespace
}  // namespace fsdp::testing
