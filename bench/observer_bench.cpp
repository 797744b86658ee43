// What watching costs an operator that reads no sharded parameter: the same small operators with and without
// a sharded model in the process. Prints one JSON line.
#include <ATen/ATen.h>
#include <fsdp/fsdp.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCalls = 20000;
constexpr int kRounds = 15;

double microseconds_per_call(const std::function<void()>& op) {
  const auto start = Clock::now();
  for (int i = 0; i < kCalls; ++i) op();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kCalls;
}

struct Case {
  const char* name;
  int dispatches;  // operators that one call dispatches
  std::function<void()> op;
  double without = 1e9;
  double with = 1e9;
};

}  // namespace

int main() {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  auto world = fsdp::init();
  const at::Tensor x = at::randn({4, 4}), y = at::randn({4, 4});
  std::vector<at::Tensor> list(8, x);
  std::vector<Case> cases = {
      {"add", 1, [&] { x.add(y); }}, {"view", 1, [&] { x.view({16}); }}, {"cat", 1, [&] { at::cat(list); }}};
  // Best of several rounds, with and without in turn: the machine may be shared.
  for (int round = 0; round < kRounds; ++round) {
    for (Case& one : cases) one.without = std::min(one.without, microseconds_per_call(one.op));
    auto model = fsdp::fully_shard(world, torch::nn::Linear(4, 4));
    for (Case& one : cases) one.with = std::min(one.with, microseconds_per_call(one.op));
  }
  double worst = 0;
  std::printf("{\"bench\":\"observer\"");
  for (const Case& one : cases) {
    const double cost = (one.with - one.without) / one.dispatches;
    worst = std::max(worst, cost);
    std::printf(",\"%s_us\":%.3f,\"%s_observed_us\":%.3f", one.name, one.without, one.name, one.with);
  }
  std::printf(",\"cost_per_operator_us\":%.3f,\"goal_us\":0.3,\"ok\":%s}\n", worst,
              worst <= 0.3 ? "true" : "false");
  return worst <= 0.3 ? 0 : 1;
}
