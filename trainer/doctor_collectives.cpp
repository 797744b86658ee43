// Collectives of `fsdp doctor`: are their results right, and how fast are they?
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

#include "trainer/doctor_ranks.h"

namespace fsdp::train {

namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kCheckLabel = "fsdp doctor";
constexpr int64_t kElements = 1003;

// Small integers, so that sums are exact in every dtype: element i of rank r is i % 3 + r % 2.
at::Tensor values_of(int rank, at::ScalarType dtype, c10::Device device) {
  return (torch::arange(kElements) % 3 + rank % 2).to(dtype).to(device);
}

at::Tensor sum_of_values(int ranks, at::ScalarType dtype, c10::Device device) {
  return (torch::arange(kElements) % 3 * ranks + ranks / 2).to(dtype).to(device);
}

// What is wrong with `found`; empty: nothing.
std::string difference(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor wrong = (found != expected).nonzero().cpu();
  if (wrong.numel() == 0) return "";
  const int64_t at = wrong[0][0].item<int64_t>();
  return std::to_string(wrong.size(0)) + " of " + std::to_string(found.numel()) + " elements; element " +
         std::to_string(at) + ": found " + std::to_string(found[at].item<double>()) + ", expected " +
         std::to_string(expected[at].item<double>());
}

double seconds_from(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Check {
 public:
  Check(const World& world, Comm& comm, at::ScalarType dtype) : world_(world), comm_(comm), dtype_(dtype) {
    all_gather();
    reduce_scatter();
    all_reduce();
    broadcast();
  }
  doctor::Findings findings;

 private:
  void compare(const std::string& operation, const at::Tensor& found, const at::Tensor& expected) {
    const std::string wrong = difference(found, expected);
    if (wrong.empty()) return;
    findings.push_back({.level = doctor::Level::problem,
                        .subject = "collectives",
                        .text = operation + " of " + c10::toString(dtype_) + " is wrong on rank " +
                                std::to_string(world_.rank()) + ": " + wrong,
                        .advice = "A device, a driver or a network corrupts data: leave " +
                                  end_name(world_, world_.rank()) +
                                  " out, and try again. With NCCL also try NCCL_P2P_DISABLE=1"});
  }
  at::Tensor mine() const { return values_of(world_.rank(), dtype_, world_.device()); }
  at::Tensor sums() const { return sum_of_values(world_.size(), dtype_, world_.device()); }

  void all_gather() {
    const at::Tensor slot = comm_.allocate(MemoryUse::gather, kElements * world_.size(), dtype_);
    comm_.all_gather(slot, mine(), kCheckLabel).wait();
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < world_.size(); ++rank) all.push_back(values_of(rank, dtype_, world_.device()));
    compare("all_gather", slot, torch::cat(all));
    comm_.release(slot);
  }
  void reduce_scatter() {
    const at::Tensor input = comm_.allocate(MemoryUse::reduce, kElements * world_.size(), dtype_);
    input.copy_(mine().repeat({world_.size()}));
    const at::Tensor output = torch::empty({kElements}, mine().options());
    comm_.reduce_scatter(output, input, ReduceOp::sum, 1.0, kCheckLabel).wait();
    compare("reduce_scatter", output, sums());
    comm_.claim(input, kCheckLabel);
  }
  void all_reduce() {
    const at::Tensor tensor = mine();
    comm_.all_reduce(tensor, ReduceOp::sum, kCheckLabel).wait();
    compare("all_reduce", tensor, sums());
  }
  void broadcast() {
    const int root = world_.size() - 1;
    const at::Tensor tensor = mine();
    comm_.broadcast(tensor, root, kCheckLabel).wait();
    compare("broadcast", tensor, values_of(root, dtype_, world_.device()));
  }

  const World& world_;
  Comm& comm_;
  at::ScalarType dtype_;
};

// Mean seconds of `once`, which ends with its device idle. All ranks run it equally often.
double mean_seconds(const World& world, Comm& comm, const std::function<void()>& once) {
  once();
  comm.barrier(kCheckLabel);
  const auto first = Clock::now();
  once();
  constexpr double kBudget = 0.3, kMost = 50;
  const auto times =
      static_cast<int64_t>(std::clamp(kBudget / std::max(seconds_from(first), 1e-9), 1.0, kMost));
  const at::Tensor agreed = torch::full({1}, times, torch::kLong).to(world.device());
  comm.broadcast(agreed, 0, kCheckLabel).wait();
  const int64_t count = agreed.item<int64_t>();
  const auto start = Clock::now();
  for (int64_t i = 0; i < count; ++i) once();
  return seconds_from(start) / static_cast<double>(count);
}

}  // namespace

doctor::Findings check_collectives(const World& world, Comm& comm) {
  constexpr int kExactInBf16 = 100;  // ranks whose sums bf16 holds
  doctor::Findings findings = Check(world, comm, at::kFloat).findings;
  if (world.size() > kExactInBf16) return findings;
  for (doctor::Finding& one : Check(world, comm, at::kBFloat16).findings) findings.push_back(std::move(one));
  return findings;
}

std::vector<doctor::Timing> time_collectives(const World& world, Comm& comm, double megabytes) {
  std::vector<doctor::Timing> timings;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(world.device());
  const auto in_order = [](const at::Tensor& tensor) { tensor[0].item<float>(); };  // waits for the device
  const auto per_rank = static_cast<int64_t>(megabytes * (1 << 20) / 4 / world.size());
  struct Sizes {
    double seconds = 0, bytes = 0;
  };
  const auto time = [&](const std::string& name, const std::function<Sizes(int64_t elements)>& run) {
    const Sizes small = run(2), large = run(std::max<int64_t>(per_rank, 2));
    timings.push_back(
        {.operation = name, .bytes_per_second = large.bytes / large.seconds, .latency = small.seconds});
  };
  const double ranks = world.size();
  time("all_gather", [&](int64_t elements) -> Sizes {
    const at::Tensor slot = comm.allocate(MemoryUse::gather, elements * world.size(), at::kFloat);
    const at::Tensor shard = torch::ones({elements}, options);
    const double seconds = mean_seconds(world, comm, [&] {
      comm.all_gather(slot, shard, kCheckLabel).wait();
      in_order(slot);
      comm.release(slot);
    });
    return {seconds, static_cast<double>(elements) * 4 * ranks};
  });
  time("reduce_scatter", [&](int64_t elements) -> Sizes {
    const at::Tensor input = comm.allocate(MemoryUse::reduce, elements * world.size(), at::kFloat);
    const at::Tensor output = torch::empty({elements}, options);
    const double seconds = mean_seconds(world, comm, [&] {
      comm.claim(input, kCheckLabel);
      comm.reduce_scatter(output, input, ReduceOp::sum, 1.0, kCheckLabel).wait();
      in_order(output);
    });
    comm.claim(input, kCheckLabel);
    return {seconds, static_cast<double>(elements) * 4 * ranks};
  });
  time("all_reduce", [&](int64_t elements) -> Sizes {
    const at::Tensor tensor = torch::zeros({elements * world.size()}, options);
    const double seconds = mean_seconds(world, comm, [&] {
      comm.all_reduce(tensor, ReduceOp::sum, kCheckLabel).wait();
      in_order(tensor);
    });
    return {seconds, static_cast<double>(elements) * 4 * ranks};
  });
  return timings;
}

}  // namespace fsdp::train
