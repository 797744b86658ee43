// Times the collectives of one backend and prints a JSON line per point.
//
// Usage: comm_bench --backend shm --ranks 4 --sizes 4096,65536 --ops all_gather,reduce_scatter
// [--seconds-per-point 0.3] The timed region and the data are those of bench/peers/mpi_comm.cpp: see Note
// [Timed region] and Note [Data] there.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmups = 5;
constexpr int kMinRounds = 7;
constexpr int kMaxRounds = 2000;

struct Settings {
  std::string backend = "shm";
  int ranks = 2;
  std::vector<int64_t> sizes{4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  std::vector<std::string> ops{"all_gather", "reduce_scatter", "all_reduce"};
  double seconds_per_point = 0.3;
};

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(place);
  const auto high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
}

void print_point(const std::string& impl, const std::string& op, int ranks, int64_t bytes,
                 const std::vector<double>& samples) {
  const double us = quantile(samples, 0.5);
  const nlohmann::ordered_json line{{"bench", "comm"},
                                    {"impl", impl},
                                    {"op", op},
                                    {"ranks", ranks},
                                    {"bytes", bytes},
                                    {"us", us},
                                    {"p90_us", quantile(samples, 0.9)},
                                    {"gbps", static_cast<double>(bytes) / us / 1e3},
                                    {"rounds", samples.size()},
                                    {"version", fsdp::version()}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

// One (op, bytes) pair: its buffers, its call and its closed form.
class Case {
 public:
  Case(fsdp::Comm comm, at::Device device, std::string op, int64_t bytes)
      : comm_(std::move(comm)), device_(device), op_(std::move(op)) {
    const int64_t full = bytes / 4;
    const int64_t part = full / comm_.size();
    const int64_t own = part * comm_.rank();
    TORCH_CHECK(part * comm_.size() * 4 == bytes, "bytes must be a multiple of 4 * ranks");
    const auto numbers = at::arange(full, at::TensorOptions().dtype(at::kLong)).remainder(251).to(at::kFloat);
    const bool gathers = op_ == "all_gather";
    base_ = (gathers ? numbers.narrow(0, own, part) : numbers).to(device).clone();
    source_ = at::empty_like(base_);
    if (gathers) {
      result_ = comm_.allocate(fsdp::MemoryUse::gather, full, at::kFloat);
      expected_ =
          numbers + at::arange(comm_.size(), at::TensorOptions().dtype(at::kFloat)).repeat_interleave(part);
      step_ = 1;
    } else {
      const bool scatters = op_ == "reduce_scatter";
      TORCH_CHECK(scatters || op_ == "all_reduce", "unknown op ", op_);
      result_ = scatters ? at::empty({part}, base_.options()) : source_;
      const int64_t size = comm_.size();
      expected_ = (scatters ? numbers.narrow(0, own, part) : numbers) * size +
                  static_cast<double>(size * (size - 1) / 2);
      step_ = static_cast<double>(size);
    }
  }

  // Done reading: a slot may then be gathered into again.
  void finish_reading() {
    if (op_ == "all_gather") comm_.release(result_);
  }

  // New values in every element, finished before the round begins.
  void write_source(int round) {
    at::add_out(source_, base_, static_cast<double>(comm_.rank() + stamp(round)));
  }

  void call() {
    if (op_ == "all_gather") {
      comm_.all_gather(result_, source_, "bench").wait(kTimeout);
    } else if (op_ == "reduce_scatter") {
      comm_.reduce_scatter(result_, source_, fsdp::ReduceOp::sum, 1.0, "bench").wait(kTimeout);
    } else {
      comm_.all_reduce(result_, fsdp::ReduceOp::sum, "bench").wait(kTimeout);
    }
  }

  void check(int round, bool everything) const {
    const int64_t stride = everything ? 1 : std::max<int64_t>(1, result_.numel() / 8);
    const auto at_stride = [&](const at::Tensor& t) { return t.slice(0, 0, c10::nullopt, stride); };
    const auto got = at_stride(result_).cpu();
    const auto want = at_stride(expected_) + step_ * stamp(round);
    TORCH_CHECK(got.equal(want), op_, ": rank ", comm_.rank(), " has a wrong result in round ", round);
  }

 private:
  static constexpr std::chrono::milliseconds kTimeout{60000};
  static int stamp(int round) { return 8 * (round % 5); }

  fsdp::Comm comm_;
  at::Device device_;
  std::string op_;
  at::Tensor base_, source_, result_, expected_;
  double step_ = 1;
};

double run_round(Case& work, fsdp::Comm& comm, int round, bool check_all) {
  work.write_source(round);
  comm.barrier();
  const auto start = Clock::now();
  work.call();
  const double elapsed = microseconds_since(start);
  work.check(round, check_all);
  work.finish_reading();
  return elapsed;
}

// Rank 0's word about small host numbers, whatever the device.
at::Tensor from_rank_0(fsdp::Comm& comm, at::Device device, at::Tensor values) {
  values = values.to(device);
  comm.broadcast(values, 0, "numbers").wait(std::chrono::minutes(1));
  return values.cpu();
}

std::vector<double> slowest_rank(fsdp::Comm& comm, at::Device device, const std::vector<double>& samples) {
  const auto mine = at::tensor(samples, at::kDouble).to(device);
  auto all = at::empty({mine.numel() * comm.size()}, mine.options());
  comm.all_gather(all, mine, "samples").wait(std::chrono::minutes(1));
  const auto worst = std::get<0>(all.cpu().view({comm.size(), -1}).max(0)).contiguous();
  return {worst.data_ptr<double>(), worst.data_ptr<double>() + worst.numel()};
}

void run_case(Case& work, fsdp::Comm& comm, at::Device device, const Settings& settings,
              const std::string& op, int64_t bytes) {
  double fastest = 1e30;
  for (int round = 0; round < kWarmups; ++round) {
    const auto start = Clock::now();
    run_round(work, comm, round, false);
    fastest = std::min(fastest, microseconds_since(start));
  }
  const auto wanted = static_cast<int64_t>(
      std::clamp<double>(settings.seconds_per_point * 1e6 / fastest, kMinRounds, kMaxRounds));
  const auto rounds = from_rank_0(comm, device, at::tensor({wanted}, at::kLong)).item<int64_t>();
  std::vector<double> samples;
  for (int round = 0; round < rounds; ++round)
    samples.push_back(run_round(work, comm, round, round == rounds - 1));
  const auto worst = slowest_rank(comm, device, samples);
  if (comm.rank() == 0) print_point(comm.backend_name(), op, comm.size(), bytes, worst);
}

void run_rank(fsdp::World& world, const Settings& settings) {
  at::set_num_threads(1);
  // Several NCCL ranks may share one GPU when each poses as a host of its own.
  ::setenv("NCCL_HOSTID", ("host" + std::to_string(world.rank())).c_str(), 0);
  fsdp::CommOptions options;
  if (settings.backend == "gloo") options.backend = fsdp::BackendKind::gloo;
  auto comm = fsdp::Comm::create(world, options);
  for (const auto& op : settings.ops) {
    for (const int64_t bytes : settings.sizes) {
      Case work(comm, world.device(), op, bytes);
      run_case(work, comm, world.device(), settings, op, bytes);
    }
  }
}

// One thread copying from one private buffer to another: the yardstick.
void run_memcpy(const Settings& settings) {
  for (const int64_t bytes : settings.sizes) {
    std::vector<char> from(static_cast<size_t>(bytes), 1);
    std::vector<char> to(static_cast<size_t>(bytes), 2);
    std::vector<double> samples;
    const auto begin = Clock::now();
    for (int round = 0; round < kMaxRounds &&
                        (round < kMinRounds || microseconds_since(begin) < settings.seconds_per_point * 1e6);
         ++round) {
      std::fill(from.begin(), from.end(), static_cast<char>(round));
      const auto start = Clock::now();
      std::memcpy(to.data(), from.data(), from.size());
      samples.push_back(microseconds_since(start));
      TORCH_CHECK(to.back() == static_cast<char>(round), "memcpy did not copy");
    }
    print_point("memcpy", "memcpy", 1, bytes, samples);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Times the collectives of one backend; prints a JSON line per point.");
  app.add_option("--backend", settings.backend,
                 "shm, nccl, memcpy; gloo: this process is one rank of a launcher")
      ->check(CLI::IsMember({"shm", "nccl", "memcpy", "gloo"}));
  app.add_option("--ranks", settings.ranks, "processes to start")->check(CLI::Range(1, 64));
  app.add_option("--sizes", settings.sizes, "full buffer sizes in bytes")->delimiter(',');
  app.add_option("--ops", settings.ops, "all_gather, reduce_scatter, all_reduce")->delimiter(',');
  app.add_option("--seconds-per-point", settings.seconds_per_point, "time budget of each point");
  CLI11_PARSE(app, argc, argv);
  try {
    if (settings.backend == "memcpy") {
      run_memcpy(settings);
    } else if (settings.backend == "gloo") {
      fsdp::World world = fsdp::init();
      run_rank(world, settings);
    } else {
      fsdp::InitOptions options;
      options.device = at::Device(settings.backend == "nccl" ? at::kCUDA : at::kCPU);
      fsdp::run_local(
          settings.ranks, [&](fsdp::World& world) { run_rank(world, settings); }, options);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "comm_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
