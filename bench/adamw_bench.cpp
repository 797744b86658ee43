// One step of AdamW in host memory: ours, LibTorch's fused operator and its optimizer, in turn. Prints JSON
// lines and a summary: GB/s of 28 bytes per parameter, which fp32 parameters, gradients and moments take.
//
// Usage: adamw_bench [--params 64000000] [--rounds 9] [--threads 0]
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <fsdp/optim.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "kernels/cpu/adamw.h"

namespace {

constexpr double kBytes = 28;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

torch::Tensor with_grad(int64_t params) {
  torch::Tensor param = torch::randn({params}).requires_grad_();
  param.mutable_grad() = torch::randn({params});
  return param;
}

using Step = std::function<void()>;

Step by_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  return [optimizer] { optimizer->step(); };
}

// Memory of one run, which two of the programs use in turn: where memory lies shows in times.
struct Arrays {
  explicit Arrays(int64_t n)
      : param(torch::randn({n})),
        grad(torch::randn({n})),
        average(torch::zeros({n})),
        square(torch::zeros({n})),
        copy(torch::empty({n}, torch::kBFloat16)),
        step(torch::ones({})) {}
  at::Tensor param, grad, average, square, copy, step;
};

// The fused operator as PyTorch's AdamW(fused=True) calls it.
Step by_operator(std::shared_ptr<Arrays> a) {
  return [a] {
    at::_fused_adamw_({a->param}, {a->grad}, {a->average}, {a->square}, {}, {a->step}, 1e-4, 0.9, 0.999, 0.01,
                      1e-8, false, false);
  };
}

// Our kernel, with or without the bf16 copy that an upload takes, in the same pass.
Step by_kernel(std::shared_ptr<Arrays> a, bool copy) {
  return [a, copy, step = int64_t{0}]() mutable {
    const auto numbers = fsdp::detail::adamw_numbers(1e-4, 0.9, 0.999, 1e-8, 0.01, ++step);
    auto* copies = copy ? static_cast<uint16_t*>(a->copy.data_ptr()) : nullptr;
    constexpr int64_t kAtOnce = 1 << 16;
    const int64_t all = a->param.numel();
    const auto tasks = static_cast<size_t>((all + kAtOnce - 1) / kAtOnce);
    fsdp::detail::WorkerPool::shared().run(tasks, at::get_num_threads(), [&](size_t i) {
      const int64_t begin = static_cast<int64_t>(i) * kAtOnce, end = std::min(all, begin + kAtOnce);
      fsdp::detail::adamw({.param = a->param.data_ptr<float>() + begin,
                           .grad = a->grad.data_ptr<float>() + begin,
                           .average = a->average.data_ptr<float>() + begin,
                           .square = a->square.data_ptr<float>() + begin,
                           .maximum = nullptr,
                           .copy = copies != nullptr ? copies + begin : nullptr},
                          static_cast<size_t>(end - begin), numbers, false);
    });
  };
}

}  // namespace

int main(int argc, char** argv) {
  int64_t params = 64000000;
  int rounds = 9, threads = 0;
  CLI::App app("AdamW in host memory");
  app.add_option("--params", params, "elements")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "steps of each, in turn")->check(CLI::Range(1, 1000));
  app.add_option("--threads", threads, "of LibTorch; 0: as it chooses");
  CLI11_PARSE(app, argc, argv);
  if (threads > 0) at::set_num_threads(threads);

  const fsdp::AdamWOptions options(1e-4);
  const auto arrays = std::make_shared<Arrays>(params);
  const std::vector<std::pair<std::string, Step>> steps{
      {"fsdp", by_optimizer(std::make_shared<fsdp::AdamW>(std::vector{with_grad(params)}, options))},
      {"kernel", by_kernel(arrays, false)},
      {"kernel_with_copy", by_kernel(arrays, true)},
      {"fsdp_bf16_moments",
       by_optimizer(std::make_shared<fsdp::AdamW>(std::vector{with_grad(params)}, options, at::kBFloat16))},
      {"fused_operator", by_operator(arrays)},
      {"torch_optim",
       by_optimizer(std::make_shared<torch::optim::AdamW>(std::vector{with_grad(params)}, options))}};
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round <= rounds; ++round)  // the first makes moments
    for (const auto& [name, step] : steps) {
      const auto start = std::chrono::steady_clock::now();
      step();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (round > 0) times[name].push_back(took.count());
    }
  const auto seconds = [&](const char* name) { return median(times.at(name)); };
  for (const auto& [name, step] : steps) {
    const nlohmann::ordered_json line{
        {"bench", "adamw"},
        {"impl", name},
        {"params", params},
        {"threads", at::get_num_threads()},
        {"seconds", seconds(name.c_str())},
        {"gbps", kBytes * static_cast<double>(params) / seconds(name.c_str()) / 1e9}};
    std::printf("%s\n", line.dump().c_str());
  }
  const double ours = seconds("kernel_with_copy");
  const nlohmann::ordered_json summary{
      {"bench", "adamw"},
      {"vs_torch_optim", seconds("torch_optim") / ours},
      {"vs_fused_operator", seconds("fused_operator") / ours},
      {"bf16_moments_vs_fp32", seconds("fsdp") / seconds("fsdp_bf16_moments")},
      {"ok", seconds("torch_optim") >= 5 * ours && seconds("fused_operator") >= ours &&
                 seconds("fsdp") >= seconds("fsdp_bf16_moments")}};
  std::printf("%s\n", summary.dump().c_str());
  return 0;
}
