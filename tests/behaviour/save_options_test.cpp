// Promise: each rank's own values, parts of a model and the best checkpoint are kept, and a damaged latest
// has a way back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "behaviour/checkpoint_net.h"
#include "files/file_ops.h"

namespace fsdp::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> names = detail::posix_files().list(folder);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("step-"); });
  return names;
}

Sharded<torch::nn::LinearImpl> small_model(const World& world) {
  return fully_shard(world, torch::nn::Linear(6, 4));
}

void fill_with(Sharded<torch::nn::LinearImpl>& model, double value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor slice : model.parameters()) slice.fill_(value);
}

void one_step(Sharded<torch::nn::LinearImpl>& model, torch::optim::Optimizer& optimizer) {
  model(torch::ones({2, 6})).square().sum().backward();
  optimizer.step();
  optimizer.zero_grad();
}

TEST(SaveOptions, EachRankKeepsItsOwnValues) {
  const TempFolder folder;
  run_ranks(3, [&](World& world) {
    auto model = small_model(world);
    const int64_t rank = world.rank();
    RunState run{.model = model, .step = 1, .rng = false};
    run.values["shared"] = true;
    run.rank_values["line"] = 100 + rank;
    if (rank == 1) run.rank_values["file"] = std::string("part-1");
    if (rank != 0) run.rank_values["buffer"] = torch::full({rank + 1}, rank);
    save(folder / "now", run);
    BackgroundSaver saver(folder / "later");
    saver.save(run);
    if (rank != 0) std::get<at::Tensor>(run.rank_values["buffer"]).fill_(77);
    saver.wait();
  });
  for (const char* name : {"now", "later"}) {
    run_ranks(3, [&](World& world) {
      auto model = small_model(world);
      const int64_t rank = world.rank();
      RunState run{.model = model, .rng = false};
      const LoadReport report = load(folder / name, run);
      require(std::get<int64_t>(run.rank_values.at("line")) == 100 + rank, "integers");
      require(run.rank_values.contains("file") == (rank == 1), "a value of one rank");
      require(run.rank_values.contains("buffer") == (rank != 0), "a tensor of some ranks");
      if (rank != 0)
        require(std::get<at::Tensor>(run.rank_values.at("buffer")).equal(torch::full({rank + 1}, rank)),
                "tensors");
      require(report.rank_values.empty() && run.values.size() == 1, "nothing else");
    });
    run_ranks(2, [&](World& world) {
      auto model = small_model(world);
      RunState run{.model = model, .rng = false};
      run.rank_values["line"] = int64_t{5};
      const LoadReport report = load(folder / name, run);
      require(run.rank_values.size() == 1 && std::get<int64_t>(run.rank_values.at("line")) == 5,
              "left alone");
      require(report.rank_values.size() == 3, "those of all ranks");
      for (int64_t rank = 0; rank < 3; ++rank) {
        const auto& values = report.rank_values[static_cast<size_t>(rank)];
        require(std::get<int64_t>(values.at("line")) == 100 + rank, "by rank");
        if (rank != 0)
          require(std::get<at::Tensor>(values.at("buffer")).equal(torch::full({rank + 1}, rank)), "tensors");
      }
    });
  }
}

TEST(SaveOptions, FilterSavesSomeParametersWithTheirMoments) {
  const TempFolder folder;
  const auto only_bias = [](const std::string& name) { return name == "bias"; };
  for (const bool beside : {false, true}) {
    const std::string path = folder / (beside ? "beside" : "here");
    run_ranks(2, [&](World& world) {
      auto model = small_model(world);
      fsdp::AdamW optimizer(model.parameters(), AdamWOptions(0.1));
      one_step(model, optimizer);
      RunState run{.model = model, .optimizer = &optimizer, .step = 1, .rng = false};
      const SaveOptions options{.filter = only_bias};
      if (beside) {
        BackgroundSaver saver(path, options);
        saver.save(run);
        saver.wait();
      } else {
        save(path, run, options);
      }
      const at::Tensor bias = model.parameters()[1].detach().clone();
      one_step(model, optimizer);
      const at::Tensor weight = model.parameters()[0].detach().clone();
      const std::string words = words_of([&] { load(path, run); });
      require_words(words, "missing in the checkpoint (1): weight");
      require_words(words, "SaveOptions::filter");
      load(path, run, {.filter = only_bias});
      require(model.parameters()[1].equal(bias), "the bias is loaded");
      require(model.parameters()[0].equal(weight), "the weight stays");
    });
    std::vector<std::string> names;
    for (const auto& [name, tensor] : read_checkpoint(path)) names.push_back(name);
    EXPECT_THAT(names, ElementsAre("bias", "state.bias.exp_avg", "state.bias.exp_avg_sq", "state.bias.step"));
  }
}

TEST(SaveOptions, FilterThatThrowsIsThrownByAllRanks) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = small_model(world);
    const SaveOptions options{.filter = [&](const std::string&) -> bool {
                                if (world.rank() == 1) throw 7;
                                return true;
                              },
                              .timeout = std::chrono::seconds(20)};
    require_words(words_of([&] { save(folder / "run", {.model = model}, options); }), "threw 'int'");
  });
}

TEST(SaveOptions, TheBestOneIsKept) {
  const TempFolder folder;
  const std::vector<double> losses{5, 2, 4, std::nan(""), 3};
  for (const bool highest : {false, true}) {
    const std::string path = folder / (highest ? "high" : "low");
    run_ranks(2, [&](World& world) {
      auto model = small_model(world);
      const SaveOptions options{.keep_last = 1, .keep_best = "loss", .best_is_highest = highest};
      RunState run{.model = model, .rng = false};
      require_words(words_of([&] { save(path, run, options); }), "has no number of that name");
      for (const double loss : losses) {
        ++run.step;
        run.values["loss"] = world.rank() == 0 ? loss : 0.0;  // rank 0's count
        save(path, run, options);
      }
    });
  }
  EXPECT_THAT(checkpoints_in(folder / "low"), ElementsAre("step-00000002", "step-00000005"));
  EXPECT_THAT(checkpoints_in(folder / "high"), ElementsAre("step-00000001", "step-00000005"));
}

TEST(SaveOptions, AFreshOptimizerStartsFromACheckpointWithoutOne) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = small_model(world);
    fill_with(model, 3);
    save(folder / "weights", {.model = model, .step = 4, .rng = false});
    auto other = small_model(world);
    torch::optim::AdamW optimizer(other.parameters(), torch::optim::AdamWOptions(0.1));
    RunState run{.model = other, .optimizer = &optimizer};
    const LoadReport report = load(folder / "weights", run);
    require(run.step == 4 && other.parameters()[0].equal(model.parameters()[0]), "the weights are loaded");
    require(report.optimizer.size() == 1, "the report says so");
    require_words(report.optimizer[0], "has no optimizer");
    one_step(other, optimizer);
    require_words(words_of([&] { load(folder / "weights", run); }), "has no optimizer");
  });
}

void break_files(const std::string& checkpoint) {
  for (const auto& file : std::filesystem::directory_iterator(checkpoint)) {
    if (file.path().string().find("-model-") == std::string::npos) continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-1, std::ios::end);
    bytes.put('x');
  }
}

void check_way_back(bool in_use) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    auto model = small_model(world);
    for (int64_t number = 1; number <= 4; ++number) {
      fill_with(model, static_cast<double>(number));
      save(folder / "run", {.model = model, .step = number, .rng = false});
    }
    Comm::create(world).barrier();
    if (world.rank() == 0) {
      break_files(folder / "run/step-00000004");
      std::filesystem::resize_file(folder / "run/step-00000003/manifest.json", 100);
    }
    Comm::create(world).barrier();
    auto other = small_model(world);
    if (in_use) other(torch::ones({2, 6}));
    RunState run{.model = other, .rng = false};
    const std::string words = words_of([&] { load(folder / "run", run); });
    require_words(words, "is damaged");
    require_words(words, folder / "run/step-00000002 has all its files");
    require_words(words, "LoadOptions::fall_back");
    require(run.step == 0, "nothing of the run is loaded");
    const LoadReport report = load(folder / "run", run, {.fall_back = true});
    require(run.step == 2 && report.path == folder / "run/step-00000002", report.path);
    require(report.damaged.size() == 1, "the report says so");
    for (const at::Tensor& slice : other.parameters()) require((slice == 2).all().item<bool>(), "the values");
    other(torch::ones({2, 6}));
    require_words(words_of([&] { load(folder / "run/step-00000004", run, {.fall_back = true}); }),
                  "is damaged");  // one checkpoint has no others
  });
}

TEST(SaveOptions, ADamagedLatestHasAWayBackForAModelInUse) { check_way_back(true); }
TEST(SaveOptions, ADamagedLatestHasAWayBackForAFreshModel) { check_way_back(false); }

}  // namespace
}  // namespace fsdp::testing
