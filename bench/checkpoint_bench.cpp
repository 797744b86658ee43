// Saves and loads a Llama with its AdamW moments. Each line it reads from stdin makes it prepare or do the
// next operation; it answers with a JSON line.
//
// Usage: checkpoint_bench --folder DIR --rounds 5 --ranks 2 [--dim 768 --layers 10 --vocab 8192] [--plain]
// The counterpart of bench/peers/torch_checkpoint.py; what is timed is in bench/README.md.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "models/llama.h"

namespace {

using fsdp::models::LlamaForCausalLM;
using Clock = std::chrono::steady_clock;

constexpr int64_t kHeadDim = 64;
constexpr int64_t kSeq = 8;
constexpr int64_t kSampleStride = 997;
constexpr size_t kPlainWrite = size_t{16} << 20;
constexpr std::chrono::minutes kTurn{30};  // others take theirs

struct Settings {
  int ranks = 2;
  int rounds = 1;
  int64_t dim = 768, layers = 10, vocab = 8192;
  std::string folder;
  bool plain = false;  // one file of as many bytes, written and read by one process
};

using Tensors = std::vector<at::Tensor>;

// The value of element i of a tensor in a round: whole numbers that change from round to round.
at::Tensor closed_form(int64_t numel, int64_t stride, int round) {
  const auto index = at::arange(0, numel, stride, at::TensorOptions().dtype(at::kLong));
  return index.remainder(65521).add_(65536 * round).to(at::kFloat);
}

void fill(const Tensors& tensors, int round) {
  for (const at::Tensor& tensor : tensors) tensor.copy_(closed_form(tensor.numel(), 1, round));
}

void spoil(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) tensor.fill_(-1);
}

// Some elements of every tensor, or all of them.
void check(const Tensors& tensors, int round, bool everything) {
  const int64_t stride = everything ? 1 : kSampleStride;
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK(tensor.slice(0, 0, tensor.numel(), stride).equal(closed_form(tensor.numel(), stride, round)),
                "a loaded tensor does not have the values of round ", round);
}

LlamaForCausalLM make_model(const Settings& settings) {
  return LlamaForCausalLM(fsdp::models::LlamaConfig{.vocab_size = settings.vocab,
                                                    .hidden_size = settings.dim,
                                                    .num_hidden_layers = settings.layers,
                                                    .num_attention_heads = settings.dim / kHeadDim,
                                                    .max_position_embeddings = kSeq});
}

int64_t count_params(const Settings& settings) {
  int64_t count = 0;
  for (const auto& item : fsdp::on_meta([&] { return make_model(settings); })->parameters())
    count += item.numel();
  return count;
}

class ShardedRun {
 public:
  static constexpr const char* kName = "fsdp";

  ShardedRun(const fsdp::World& world, const Settings& settings)
      : comm_(fsdp::Comm::create(world)),
        model_(fsdp::fully_shard(world, make_model(settings))),
        optimizer_(model_.parameters(), fsdp::AdamWOptions(1e-4)) {
    const auto ids = at::full({1, kSeq}, world.rank(), at::TensorOptions().dtype(at::kLong));
    model_(ids, ids).backward();
    optimizer_.step();  // makes the moments
    optimizer_.zero_grad();
  }

  bool prints() const { return comm_.rank() == 0; }
  void barrier() { (void)from_ranks(0); }
  std::vector<double> from_ranks(double value) {
    const auto mine = at::full({1}, value, at::TensorOptions().dtype(at::kDouble));
    auto all = at::empty({comm_.size()}, mine.options());
    comm_.all_gather(all, mine, "numbers").wait(kTurn);
    return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
  }

  Tensors tensors() {
    Tensors all;
    for (const at::Tensor& param : model_.parameters()) {
      if (param.numel() == 0) continue;
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *optimizer_.state().at(param.unsafeGetTensorImpl()));
      all.insert(all.end(), {param.detach(), state.exp_avg(), state.exp_avg_sq()});
    }
    return all;
  }

  void save(const std::string& path) { fsdp::save(path, {.model = model_, .optimizer = &optimizer_}); }
  void load(const std::string& path) {
    fsdp::RunState run{.model = model_, .optimizer = &optimizer_};
    fsdp::load(path, run, {.verify_first = false});  // as for a model that was never called
  }

 private:
  fsdp::Comm comm_;
  fsdp::Sharded<fsdp::models::LlamaForCausalLMImpl> model_;
  fsdp::AdamW optimizer_;
};

// What a disk or a memory file system gives a program that asks for nothing else.
class PlainFile {
 public:
  static constexpr const char* kName = "plain";

  explicit PlainFile(const Settings& settings) : data_(at::empty({count_params(settings) * 3})) {}

  static bool prints() { return true; }
  static void barrier() {}
  static std::vector<double> from_ranks(double value) { return {value}; }
  // As small as parameters are: filling a large one would take several times its memory.
  Tensors tensors() { return data_.split(int64_t{1} << 20); }

  void save(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    TORCH_CHECK(fd >= 0, "cannot create ", path);
    each_part([&](char* at, size_t n) { return ::write(fd, at, n); });
    TORCH_CHECK(::fsync(fd) == 0 && ::close(fd) == 0, "cannot sync ", path);
  }
  void load(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    TORCH_CHECK(fd >= 0, "cannot open ", path);
    each_part([&](char* at, size_t n) { return ::read(fd, at, n); });
    ::close(fd);
  }

 private:
  template <class Call>
  void each_part(Call call) {
    char* at = static_cast<char*>(data_.data_ptr());
    char* end = at + data_.nbytes();
    while (at < end) {
      const ssize_t n = call(at, std::min(kPlainWrite, static_cast<size_t>(end - at)));
      TORCH_CHECK(n > 0, "cannot write or read");
      at += n;
    }
  }

  at::Tensor data_;
};

struct Elapsed {
  double wall = 0, cpu = 0;  // seconds; cpu of all threads of this process
};

Elapsed since_start() {
  timespec cpu{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  const std::chrono::duration<double> wall = Clock::now().time_since_epoch();
  return {wall.count(), static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9};
}

template <class Run>
void print_line(Run& run, const char* op, int64_t bytes, const Elapsed& mine) {
  const auto wall = run.from_ranks(mine.wall), cpu = run.from_ranks(mine.cpu);
  if (!run.prints()) return;
  const double seconds = *std::max_element(wall.begin(), wall.end());
  const nlohmann::ordered_json line{{"bench", "checkpoint"},
                                    {"impl", Run::kName},
                                    {"op", op},
                                    {"ranks", wall.size()},
                                    {"bytes", bytes},
                                    {"seconds", seconds},
                                    {"cpu_seconds", std::accumulate(cpu.begin(), cpu.end(), 0.0)},
                                    {"gbps", static_cast<double>(bytes) / seconds / 1e9},
                                    {"version", fsdp::version()}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void say_ready() {
  std::puts("{\"ready\":true}");
  std::fflush(stdout);
}

void await_turn(bool reads) {
  if (std::string line; reads) TORCH_CHECK(std::getline(std::cin, line), "stdin has ended");
}

template <class Run, class Work>
Elapsed timed(Run& run, Work work) {
  run.barrier();
  const Elapsed start = since_start();
  work();
  const Elapsed end = since_start();
  return {.wall = end.wall - start.wall, .cpu = end.cpu - start.cpu};
}

// The first line makes it prepare, the second is the sign to begin. Between lines and answers nobody else
// works.
template <class Run, class Prepare>
void get_ready(Run& run, Prepare prepare) {
  await_turn(run.prints());
  prepare();
  run.barrier();
  if (run.prints()) say_ready();
  await_turn(run.prints());
}

template <class Run>
void take_turns(Run run, const Settings& settings) {
  const torch::NoGradGuard no_grad;
  const int64_t bytes = count_params(settings) * 3 * 4;
  if (run.prints()) say_ready();
  for (int round = 0; round < settings.rounds; ++round) {
    const std::string path = settings.folder + "/" + std::to_string(round);
    get_ready(run, [&] { fill(run.tensors(), round); });
    print_line(run, "save", bytes, timed(run, [&] { run.save(path); }));
    get_ready(run, [&] { spoil(run.tensors()); });
    const Elapsed elapsed = timed(run, [&] { run.load(path); });
    check(run.tensors(), round, round + 1 == settings.rounds);
    print_line(run, "load", bytes, elapsed);
  }
}

void start(const Settings& settings) {
  if (settings.plain) return take_turns(PlainFile(settings), settings);
  fsdp::run_local(settings.ranks,
                  [&](fsdp::World& world) {
                    at::set_num_threads(1);
                    take_turns(ShardedRun(world, settings), settings);
                  },
                  {.device = at::kCPU});
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Saves and loads a model for each two lines it reads; prints a JSON line for each.");
  app.add_option("--folder", settings.folder, "an existing folder to write into")->required();
  app.add_option("--rounds", settings.rounds, "saves and loads")->check(CLI::Range(1, 200));
  app.add_option("--ranks", settings.ranks, "processes to start")->check(CLI::Range(1, 64));
  app.add_option("--dim", settings.dim, "hidden size, a multiple of 64");
  app.add_option("--layers", settings.layers, "decoder layers");
  app.add_option("--vocab", settings.vocab, "tokens there are");
  app.add_flag("--plain", settings.plain, "one file of as many bytes, written and read by one process");
  CLI11_PARSE(app, argc, argv);
  try {
    start(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
