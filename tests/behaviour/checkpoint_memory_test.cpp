// Promise: a rank that saves or loads needs little more memory than one that trains.
#include <gtest/gtest.h>

#include <fstream>

#include "behaviour/checkpoint_net.h"
#include "files/block_file.h"
#include "files/safetensors.h"
#include "support/allocator_watch.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kBlocks = 24;
constexpr int64_t kWidth = 1024;
constexpr int64_t kLargest = 16 * kMiB;                    // bytes of the first unit
constexpr int64_t kWhole = kLargest + kBlocks * 8 * kMiB;  // of all parameters
constexpr int64_t kSlack = 64 * kMiB;

struct DeepNet : torch::nn::SequentialImpl {
  DeepNet() {
    push_back(linear(4 * kWidth));
    for (int64_t i = 0; i < kBlocks; ++i) push_back(linear(2 * kWidth));
  }
  static torch::nn::Linear linear(int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(kWidth, out).bias(false));
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < size(); ++i) x = at<torch::nn::LinearImpl>(i).forward(x).narrow(-1, 0, kWidth);
    return x.square().mean();
  }
};

// Resident memory of this process, as the kernel counts it.
class Resident {
 public:
  Resident() {
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
    before_ = read("VmRSS:");
    require(read("VmHWM:") <= before_ + kMiB, "the kernel does not restart the peak");
  }
  int64_t grown() const { return read("VmHWM:") - before_; }

 private:
  static int64_t read(const std::string& key) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
      if (int64_t kib = 0; word == key && status >> kib) return kib * 1024;
    return 0;
  }
  int64_t before_ = 0;
};

void require_less(const World& world, const char* what, const Resident& memory, int64_t allowed) {
  const int64_t grown = memory.grown();
  const std::string figures = std::string(what) + ": rank " + std::to_string(world.rank()) + " grew by " +
                              std::to_string(grown / kMiB) + " MiB, allowed " +
                              std::to_string(allowed / kMiB);
  if (world.rank() == 0) std::printf("%s\n", figures.c_str());
  require(grown <= allowed, figures);
}

ShardOptions by_layer(bool shares) {
  return {.wrap = by_type<torch::nn::LinearImpl>(), .share_shards = shares};
}

struct Trained {
  Trained(const World& world, bool shares)
      : model(fully_shard(world, std::make_shared<DeepNet>(), by_layer(shares))),
        optimizer(model.parameters(), AdamWOptions(1e-4)) {
    for (int i = 0; i < 3; ++i) {
      model(torch::ones({1, kWidth}, world.device())).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  RunState run() { return {.model = model, .optimizer = &optimizer, .step = 3}; }

  Sharded<DeepNet> model;
  AdamW optimizer;
};

TEST(CheckpointMemory, ATrainingRankSavesAndLoadsInLittle) {
  const TempFolder folder;
  for (const bool shares : {false, true})
    run_processes(2, [&](World& world) {
      Trained trained(world, shares);
      {
        const Resident memory;
        int64_t bytes = 0;
        visit_state_dict(trained.model, {.rank0_only = true},
                         [&](const std::string&, const at::Tensor& whole) {
                           bytes += static_cast<int64_t>(whole.nbytes());
                           require(whole.sum().isfinite().item<bool>(), "values");
                         });
        require(bytes == (world.rank() == 0 ? kWhole : 0), "all of the model was seen");
        require_less(world, "a full state dict, one tensor at a time", memory, kLargest + kSlack);
      }
      RunState run = trained.run();
      const std::string path = folder / (shares ? "shared" : "own");
      {
        const Resident memory;
        save(path, run);
        require_less(world, "save()", memory, kSlack);
      }
      {
        const Resident memory;
        load(path, run);
        require_less(world, "load()", memory, kSlack);
      }
    });
}

TEST(GpuCheckpointMemory, AFullStateDictHoldsOneUnitOnTheDevice) {
  run_on_gpus(2, [](World& world) {
    Trained trained(world, false);
    DeviceMemory memory(world.device());
    memory.restart_peak();
    const StateDict state = state_dict(trained.model, {.offload = true, .rank0_only = true});
    const int64_t grown = memory.peak_bytes();
    std::printf("rank %d: a full state dict took %ld MiB of the device\n", world.rank(), grown / kMiB);
    require(state.size() == (world.rank() == 0 ? kBlocks + 1 : 0), "rank 0 has all of it");
    require(grown <= kLargest + kSlack, std::to_string(grown) + " bytes");
  });
}

// Some training, of next to nothing.
struct Small {
  explicit Small(const World& world) {
    auto model = fully_shard(world, on_meta([] { return torch::nn::Linear(64, 64); }));
    AdamW optimizer(model.parameters(), AdamWOptions(1e-4));
    model(torch::ones({1, 64})).sum().backward();
    optimizer.step();
  }
};

// A folder as transformers writes it.
void write_hf_folder(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << R"({"model_type": "deep"})";
  std::vector<detail::SafetensorsEntry> entries;
  int64_t at = 0;
  for (int64_t i = 0; i <= kBlocks; ++i) {
    const int64_t rows = i == 0 ? 4 * kWidth : 2 * kWidth;
    const int64_t end = at + rows * kWidth * 4;
    entries.push_back({.name = std::to_string(i) + ".weight",
                       .dtype = "F32",
                       .shape = {rows, kWidth},
                       .begin = at,
                       .end = end});
    at = end;
  }
  detail::BlockWriter writer(detail::posix_files(), folder, "model.safetensors",
                             detail::make_safetensors_header(entries, {{"format", "pt"}}));
  const std::vector<float> values(kMiB, 0.5F);
  for (int64_t i = 0; i < at / (4 * kMiB); ++i) writer.append(std::as_bytes(std::span(values)));
  writer.finish();
}

TEST(CheckpointMemory, StartWeightsNeverLieWholeOnARank) {
  const TempFolder folder;
  write_hf_folder(folder / "hf");
  for (const bool shares : {false, true})
    run_processes(4, [&](World& world) {
      { const Small warm(world); }  // the libraries' own pages are not the model's
      const Resident memory;
      auto model = fully_shard(world, on_meta([] { return std::make_shared<DeepNet>(); }), by_layer(shares));
      RunState run{.model = model};
      load(folder / "hf", run, {.weights_only = true});
      require_less(world, "a Hugging Face folder", memory, kWhole / world.size() + 2 * kLargest);
      for (const at::Tensor& slice : model.parameters())
        require(slice.detach().eq(0.5).all().item<bool>(), "values");
    });
}

}  // namespace
}  // namespace fsdp::testing
