// Times OpenMPI's collectives the way comm_bench times ours, and prints the same JSON lines.
//
// Usage: mpirun -np 4 mpi_comm --sizes 4096,65536 --ops all_gather,reduce_scatter [--seconds-per-point 0.3]
//
// Note [Timed region]
// One round, the same in comm_bench, torch_comm.py and here:
//   1. every rank writes new values to every element of its private source buffer;
//   2. barrier;
//   3. t0 on a monotonic clock;
//   4. the collective, blocking: it starts from the private source and ends when this rank may read its
//      whole result (all_gather and broadcast: the full buffer; reduce_scatter: its own part, in private
//      memory; all_reduce: the full sum, in place of the private source);
//   5. t1 on the same clock;
//   6. a few positions of the result are compared with the closed form; in the last round every position is.
// A round takes as long as its slowest rank: max over ranks of t1 - t0. A point reports the median and the
// 90th percentile over its rounds. kWarmups rounds come first and are not counted; rank 0 chooses the number
// of counted rounds so that they fill the time budget (whole rounds, steps 1 to 6) within [kMinRounds,
// kMaxRounds].
//
// Note [Data]
// Element j of the full buffer, on rank r, in round k, is (j mod 251) + r + 8 (k mod 5). Two rounds in a row
// differ in every element, so a stale result is seen; every sum is a whole number far below 2^24, so fp32
// holds it exactly.
#define OMPI_SKIP_MPICXX 1  // the C++ bindings of MPI 2 are not used and do not compile without warnings
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmups = 5;
constexpr int kMinRounds = 7;
constexpr int kMaxRounds = 2000;

struct Options {
  std::vector<std::size_t> sizes;
  std::vector<std::string> ops;
  double seconds_per_point = 0.3;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--sizes") {
      for (const auto& size : split(value)) options.sizes.push_back(std::stoull(size));
    } else if (name == "--ops") {
      options.ops = split(value);
    } else if (name == "--seconds-per-point") {
      options.seconds_per_point = std::stod(value);
    } else {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  return options;
}

struct Group {
  int rank = 0;
  int size = 1;
};

// One (op, bytes) pair: its buffers, its call and its closed form. See Note [Data].
class Case {
 public:
  Case(std::string op, std::size_t bytes, Group group) : op_(std::move(op)), bytes_(bytes), group_(group) {
    const auto ranks = static_cast<std::size_t>(group.size);
    if (bytes % (sizeof(float) * ranks) != 0)
      throw std::invalid_argument("bytes must be a multiple of 4 * ranks");
    const std::size_t full = bytes / sizeof(float);
    const std::size_t part = full / ranks;
    const std::size_t own = part * static_cast<std::size_t>(group.rank);
    part_ = static_cast<int>(part);
    full_ = static_cast<int>(full);
    if (op_ == "all_gather") {
      set_up(own, part, 0, full);
    } else if (op_ == "reduce_scatter") {
      set_up(0, full, own, part);
    } else if (op_ == "all_reduce" || op_ == "broadcast") {
      set_up(0, full, 0, full);
    } else {
      throw std::invalid_argument("unknown op " + op_);
    }
  }

  void write_source(int round) {
    const auto shift = static_cast<float>(group_.rank + stamp(round));
    std::vector<float>& source = in_place() ? result_ : source_;
    std::transform(base_.begin(), base_.end(), source.begin(), [shift](float x) { return x + shift; });
  }

  void call() {
    if (op_ == "all_gather") {
      MPI_Allgather(source_.data(), part_, MPI_FLOAT, result_.data(), part_, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (op_ == "reduce_scatter") {
      MPI_Reduce_scatter_block(source_.data(), result_.data(), part_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (op_ == "all_reduce") {
      MPI_Allreduce(MPI_IN_PLACE, result_.data(), full_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else {
      MPI_Bcast(result_.data(), full_, MPI_FLOAT, 0, MPI_COMM_WORLD);
    }
  }

  // Throws when the result of this round is wrong; stride 1 checks every position.
  void check(int round, std::size_t stride) const {
    for (std::size_t i = 0; i < result_.size(); i += stride) check_at(i, round);
    check_at(result_.size() - 1, round);
  }

  std::size_t sparse_stride() const { return std::max<std::size_t>(1, result_.size() / 8); }
  std::size_t bytes() const { return bytes_; }
  const std::string& op() const { return op_; }

 private:
  static int stamp(int round) { return 8 * (round % 5); }
  bool in_place() const { return op_ == "all_reduce" || op_ == "broadcast"; }

  void set_up(std::size_t source_begin, std::size_t source_size, std::size_t result_begin,
              std::size_t result_size) {
    result_begin_ = result_begin;
    result_.resize(result_size);
    if (!in_place()) source_.resize(source_size);
    base_.resize(source_size);
    for (std::size_t i = 0; i < source_size; ++i) base_[i] = static_cast<float>((source_begin + i) % 251);
  }

  float expected(std::size_t j, int round) const {
    const int value = static_cast<int>(j % 251) + stamp(round);
    if (op_ == "all_gather") return static_cast<float>(value + static_cast<int>(j) / part_);
    if (op_ == "broadcast") return static_cast<float>(value);
    return static_cast<float>(group_.size * value + group_.size * (group_.size - 1) / 2);
  }

  void check_at(std::size_t i, int round) const {
    const float want = expected(result_begin_ + i, round);
    if (result_[i] == want) return;
    std::ostringstream message;
    message << op_ << " of " << bytes_ << " bytes: rank " << group_.rank << " has " << result_[i] << " at "
            << i << ", not " << want;
    throw std::runtime_error(message.str());
  }

  std::string op_;
  std::size_t bytes_;
  Group group_;
  int part_ = 0;  // elements of one rank's part
  int full_ = 0;  // elements of the full buffer
  std::size_t result_begin_ = 0;
  std::vector<float> base_, source_, result_;
};

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Runs one round and returns this rank's t1 - t0 in microseconds. See Note [Timed region].
double run_round(Case& work, int round, bool check_all) {
  work.write_source(round);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = Clock::now();
  work.call();
  const double elapsed = microseconds_since(start);
  work.check(round, check_all ? 1 : work.sparse_stride());
  return elapsed;
}

int choose_rounds(Case& work, double seconds) {
  double fastest = 1e30;
  for (int round = 0; round < kWarmups; ++round) {
    const auto start = Clock::now();
    run_round(work, round, false);
    fastest = std::min(fastest, microseconds_since(start));
  }
  int rounds = static_cast<int>(std::clamp<double>(seconds * 1e6 / fastest, kMinRounds, kMaxRounds));
  MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return rounds;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const auto high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
}

// "Open MPI v4.1.4"; the library's own text goes on about its packaging after the first comma.
std::string version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text);
  return all.substr(0, all.find(','));
}

void print_point(const Case& work, Group group, const std::vector<double>& samples) {
  const double us = quantile(samples, 0.5);
  std::printf(
      "{\"bench\":\"comm\",\"impl\":\"openmpi\",\"op\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"us\":%.3f,"
      "\"p90_us\":%.3f,\"gbps\":%.4f,\"rounds\":%zu,\"version\":\"%s\"}\n",
      work.op().c_str(), group.size, work.bytes(), us, quantile(samples, 0.9),
      static_cast<double>(work.bytes()) / us / 1e3, samples.size(), version().c_str());
  std::fflush(stdout);
}

void run_case(Case& work, Group group, double seconds) {
  const int rounds = choose_rounds(work, seconds);
  std::vector<double> samples(static_cast<std::size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    samples[static_cast<std::size_t>(round)] = run_round(work, round, round == rounds - 1);
  }
  std::vector<double> slowest(samples.size());
  MPI_Reduce(samples.data(), slowest.data(), rounds, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (group.rank == 0) print_point(work, group, slowest);
}

void run_all(const Options& options) {
  Group group;
  MPI_Comm_rank(MPI_COMM_WORLD, &group.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &group.size);
  for (const auto& op : options.ops) {
    for (const std::size_t bytes : options.sizes) {
      Case work(op, bytes, group);
      run_case(work, group, options.seconds_per_point);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    run_all(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "mpi_comm: " << error.what() << "\n";
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
