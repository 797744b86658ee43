// Promise: in reproducible mode random programs end with the same bits on 1, 2 and 4 ranks, also where blocks
// are called several times in one backward, recomputed or not.
#include <fsdp/recompute.h>
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "fuzz/net.h"
#include "support/ranks.h"

namespace fsdp::fuzz {
namespace {

using at::Tensor;

constexpr int kMicrobatches = 4;
constexpr int kSteps = 4;

struct Call {
  size_t block = 0;
  bool gate = false;
  bool again = false;
};

// The steps of a training take turns between two ways, each of one or two forwards before a backward.
struct Calls {
  struct Step {
    std::vector<Call> calls;
    int forwards = 1;
    bool around = false;  // a recomputed function around all calls
  };
  Net net;
  int wrap = 0;
  Step ways[2] = {};
};

Calls draw(uint64_t seed) {
  std::mt19937_64 dice(seed);
  const auto below = [&](uint64_t n) { return dice() % n; };
  Calls program{.net = {.width = 3 + static_cast<int>(below(6)),
                        .blocks = 2 + static_cast<int>(below(3)),
                        .tied = below(3) == 0,
                        .single = true,
                        .frozen = below(4) == 0}};
  program.wrap = static_cast<int>(below(3));
  for (Calls::Step& way : program.ways) {
    for (auto n = 2 + below(5); n > 0; --n)
      way.calls.push_back({.block = below(static_cast<uint64_t>(program.net.blocks)),
                           .gate = below(3) == 0,
                           .again = below(2) == 0});
    way.forwards = 1 + static_cast<int>(below(2));
    way.around = below(4) == 0;
  }
  return program;
}

std::string to_text(const Calls& program) {
  std::ostringstream text;
  text << "width " << program.net.width << ", wrap " << program.wrap << ", tied " << program.net.tied;
  for (const auto& way : program.ways) {
    text << "; " << way.forwards << " forwards" << (way.around ? " around" : "") << ":";
    for (const Call& call : way.calls)
      text << " " << call.block << (call.gate ? "g" : "") << (call.again ? "r" : "");
  }
  return text.str();
}

Tensor run_calls(ModelImpl& net, const Calls::Step& way, const Tensor& x) {
  const auto all = [&net, &way](const Tensor& in) {
    Tensor h = in;
    for (const Call& call : way.calls) {
      const auto block = [block = net.blocks[call.block], gate = call.gate](const Tensor& one) {
        return block.ptr()->forward(one, gate);
      };
      h = call.again ? recompute(block, h) : block(h);
    }
    return h;
  };
  const Tensor h = net.in(x);
  return net.out(way.around ? recompute(all, h) : all(h));
}

uint64_t train(const World& world, const Calls& program) {
  ShardOptions options{.reproducible = Reproducible{.microbatches = kMicrobatches}};
  const WrapPolicy policies[] = {by_type<BlockImpl>(), by_size(40), whole_model()};
  options.wrap = policies[program.wrap];
  options.comm.timeout = std::chrono::milliseconds(20000);
  auto model = fully_shard(world, make_model(program.net), options);
  torch::optim::SGD optimizer(model.parameters(), 0.05);
  for (int step = 0; step < kSteps; ++step) {
    const Calls::Step& way = program.ways[step % 2];
    for (int i = world.rank(); i < kMicrobatches; i += world.size()) {
      Tensor loss = torch::zeros({});
      for (int k = 0; k < way.forwards; ++k) {
        auto generator = at::make_generator<at::CPUGeneratorImpl>(
            static_cast<uint64_t>((step * kMicrobatches + i) * 2 + k + 100));
        const Tensor x = torch::randn({3, program.net.width}, generator);
        loss = loss + model.run([&](ModelImpl& net) { return run_calls(net, way, x); }).square().mean();
      }
      loss.backward();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return model.state_hash();
}

TEST(FuzzReproducible, ProgramsEndWithTheSameBitsOnAnyNumberOfRanks) {
  const uint64_t first = testing::seed();
  const int count = testing::repeats(40, 2000);
  int failed = 0;
  for (uint64_t s = first; s < first + static_cast<uint64_t>(count) && failed < 3; ++s) {
    const Calls program = draw(s);
    uint64_t wanted = 0;
    std::string wrong;
    for (const int ranks : {1, 2, 4}) try {
        testing::run_ranks(ranks, [&](World& world) {
          at::set_num_threads(1);
          const uint64_t found = train(world, program);
          if (ranks == 1) wanted = found;
          testing::require(found == wanted, "other bits on " + std::to_string(ranks) + " ranks");
        });
      } catch (const std::exception& error) {
        wrong += std::string(error.what()) + "\n";
      }
    if (wrong.empty()) continue;
    ++failed;
    ADD_FAILURE() << "seed " << s << ": " << wrong << to_text(program);
  }
  std::cout << count << " programs in reproducible mode, " << failed << " failed\n";
}

}  // namespace
}  // namespace fsdp::fuzz
