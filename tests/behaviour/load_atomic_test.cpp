// Promise: a load is all or nothing, errors are the same on all ranks, and a run's own latest is what is
// loaded.
#include <fsdp/checkpoint_files.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "behaviour/checkpoint_net.h"
#include "files/run_folder.h"
#include "optim/state_format.h"

namespace fsdp::testing {
namespace {

constexpr std::chrono::seconds kSoon{20};  // what should happen at once, on a busy machine

// A model in use, with an optimizer that has state.
struct InUse {
  explicit InUse(const World& world)
      : rank(world.rank()),
        model(fully_shard(world, torch::nn::Linear(6, 4))),
        optimizer(model.parameters(), torch::optim::AdamWOptions(0.1)) {
    step();
  }
  void step() {
    model(torch::full({2, 6}, 1.0 + rank)).square().sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  RunState run() { return {.model = model, .optimizer = &optimizer}; }
  // Everything that a load may change.
  std::vector<at::Tensor> all() {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& slice : model.parameters()) {
      tensors.push_back(slice.detach().clone());
      const auto& state =
          static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(slice.unsafeGetTensorImpl()));
      tensors.push_back(state.exp_avg().clone());
      tensors.push_back(torch::full({}, static_cast<double>(state.step())));
    }
    const auto& options = static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());
    tensors.push_back(torch::full({}, options.lr(), at::kDouble));

    return tensors;
  }

  int rank;
  Sharded<torch::nn::LinearImpl> model;
  torch::optim::AdamW optimizer;
};

// AdamW's, but what is missing throws, as in formats that users write with at().
OptimizerFormat exacting_format(const torch::optim::Optimizer& optimizer) {
  const OptimizerFormat known = *detail::format_of(optimizer);
  OptimizerFormat format = known;
  format.make = [known](const OptimizerFormat::Tensors& tensors, int64_t steps) {
    (void)tensors.at("exp_avg_sq");
    return known.make(tensors, steps);
  };
  format.set_options = [known](auto& options, const OptimizerFormat::Numbers& numbers) {
    (void)numbers.at("lr");
    known.set_options(options, numbers);
  };
  return format;
}

// `damage` changes the manifest of a checkpoint; a load is refused, says `words`, and changes nothing.
void check_refused(const std::function<void(detail::Manifest&)>& damage, const std::string& words) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    InUse training(world);
    RunState saved = training.run();
    saved.step = 1;
    saved.values["loss"] = 0.5;
    const std::string path = save(folder / "run", saved);
    Comm::create(world).barrier();
    if (world.rank() == 0) {
      detail::FileOps& files = detail::posix_files();
      const auto open = detail::find_checkpoint(files, path);
      detail::Manifest manifest = detail::Manifest::parse(open.manifest_text, path);
      damage(manifest);
      files.remove_file(path + "/manifest.json");
      detail::write_text(files, path + "/manifest.json", manifest.to_text());
    }
    Comm::create(world).barrier();
    training.step();
    const auto before = training.all();
    RunState run = training.run();
    const OptimizerFormat format = exacting_format(training.optimizer);
    run.optimizer_format = &format;
    run.values["loss"] = 7.0;
    require_words(words_of([&] { load(folder / "run", run); }), words);
    const auto after = training.all();
    for (size_t i = 0; i < before.size(); ++i) require(before[i].equal(after[i]), "nothing was changed");
    require(run.step == 0 && std::get<double>(run.values["loss"]) == 7.0, "the run is as before");
    training.step();  // it can be used
  });
}

TEST(LoadAtomic, ValuesAreReadBeforeWeightsAreWritten) {
  check_refused([](auto& manifest) { manifest.run["values"]["loss"] = {{"complex", 1}}; }, "value 'loss'");
}

TEST(LoadAtomic, OptionsOfGroupsAreTriedBeforeWeightsAreWritten) {
  check_refused([](auto& manifest) { manifest.run["optimizer"]["groups"][0]["options"].erase("lr"); },
                "map::at");
  check_refused([](auto& manifest) { manifest.run["optimizer"]["groups"][0]["options"]["lr"] = "much"; },
                "option 'lr'");
}

TEST(LoadAtomic, MomentsThatAreMissingAreFoundBeforeWeightsAreWritten) {
  check_refused(
      [](auto& manifest) {
        std::erase_if(manifest.tensors, [](const auto& one) { return one.first.ends_with(".exp_avg_sq"); });
      },
      "map::at");
}

TEST(LoadAtomic, GeneratorsAreTriedBeforeWeightsAreWritten) {
  check_refused(
      [](auto& manifest) {
        const detail::SavedTensor other = manifest.tensors.at("state.bias.exp_avg");
        for (int rank = 0; rank < 2; ++rank) manifest.tensors["rng.cpu." + std::to_string(rank)] = other;
      },
      "RNG state");
  check_refused([](auto& manifest) { manifest.run["rng"]["seed"] = "seven"; }, "'seed' is not a number");
}

TEST(LoadAtomic, InsideKeepGatheredItIsRefusedAndTheModelStaysUsable) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    InUse training(world);
    RunState run = training.run();
    run.step = 1;
    save(folder / "run", run);
    {
      const auto kept = training.model.keep_gathered();
      training.model(torch::ones({2, 6}));
      require_words(words_of([&] { load(folder / "run", run); }), "keep_gathered()");
      training.model(torch::ones({2, 6}));
    }
    training.step();
    load(folder / "run", run);
  });
}

// All ranks throw at once, and the same. `work` does it.
void check_same_error(const std::function<void(InUse&, const std::string&, int rank)>& work,
                      const std::string& words) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    InUse training(world);
    RunState run = training.run();
    run.step = 1;
    save(folder / "run", run);
    const auto start = std::chrono::steady_clock::now();
    require_words(words_of([&] { work(training, folder / "run", world.rank()); }), words);
    require(std::chrono::steady_clock::now() - start < kSoon, "at once");
    training.step();
    run.step = 2;
    save(folder / "run", run);
    load(folder / "run", run);
  });
}

TEST(LoadAtomic, ATextThatIsNotUtf8IsRefusedOnAllRanks) {
  const auto save_with = [](const char* name, const Value& value) {
    return [=](InUse& training, const std::string& folder, int /*rank*/) {
      RunState run = training.run();
      run.values[name] = value;
      save(folder, run, {.timeout = kSoon});
    };
  };
  check_same_error(save_with("blob", std::string("\xff\xfe")), "'blob' is not UTF-8");
  check_same_error(save_with("\xff", true), "is not UTF-8");
  check_same_error(save_with("\xff", torch::ones({2})), "is not UTF-8");
  check_same_error(
      [&](InUse& training, const std::string& folder, int rank) {
        BackgroundSaver saver(folder, {.timeout = kSoon});
        save_with("x", true)(training, folder, rank);
        RunState run = training.run();
        run.values["blob"] = std::string("\xff");
        saver.save(run);
        saver.wait();
      },
      "'blob' is not UTF-8");
}

TEST(LoadAtomic, AnythingThatACallbackThrowsIsThrownByAllRanks) {
  check_same_error(
      [](InUse& training, const std::string& folder, int rank) {
        RunState run = training.run();
        load(folder, run,
             {.rename = [&](const std::string& name) -> std::string {
                if (rank == 1) throw 42;
                return name;
              },
              .timeout = kSoon});
      },
      "threw 'int'");
  check_same_error(
      [](InUse& training, const std::string& folder, int rank) {
        RunState run = training.run();
        load(folder, run,
             {.filter = [&](const std::string&) -> bool {
                if (rank == 0) throw "words";
                return true;
              },
              .timeout = kSoon});
      },
      "threw 'char const*'");
}

TEST(LoadAtomic, ARunsLatestComesBeforeHuggingFaceWeightsInItsFolder) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    InUse training(world);
    RunState run = training.run();
    run.step = 7;
    save(folder / "run", run);
    Comm::create(world).barrier();
    if (world.rank() == 0) {
      std::ofstream(folder / "run/config.json") << "{}";
      std::filesystem::copy_file(folder / "run/step-00000007/shard-00000-model-00001-of-00001.safetensors",
                                 folder / "run/model.safetensors");
    }
    Comm::create(world).barrier();
    require(has_checkpoint(folder / "run"), "there is one");
    run.step = 0;
    const LoadReport report = load(folder / "run", run);
    require(run.step == 7 && report.path == folder / "run/step-00000007", report.path);
  });
}

TEST(LoadAtomic, ALatestThatIsDeletedMeanwhileIsFoundAgain) {
  const TempFolder folder;
  std::atomic<bool> done{false};
  std::thread trainer([&] {
    run_ranks(1, [&](World& world) {
      auto model = fully_shard(world, torch::nn::Linear(64, 64));
      for (int64_t step = 1; !done; ++step) {
        const at::NoGradGuard no_grad;
        for (at::Tensor slice : model.parameters()) slice.fill_(static_cast<double>(step));
        save(folder / "run", {.model = model, .step = step, .rng = false}, {.keep_last = 1});
        std::this_thread::sleep_for(std::chrono::milliseconds(10));  // a step of training
      }
    });
  });
  while (!has_checkpoint(folder / "run")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::atomic<int> failed{0}, mixed{0};
  std::string words;
  run_ranks(2, [&](World& world) {
    auto model = fully_shard(world, torch::nn::Linear(64, 64));
    for (int i = 0; i < 60; ++i) {
      RunState run{.model = model, .rng = false};
      try {
        load(folder / "run", run);
        for (const at::Tensor& slice : model.parameters())
          if (!(slice == run.step).all().item<bool>()) ++mixed;
      } catch (const std::exception& error) {
        ++failed;
        if (world.rank() == 0) words = error.what();
      }
    }
  });
  done = true;
  trainer.join();
  EXPECT_EQ(failed, 0) << words;
  EXPECT_EQ(mixed, 0);
}

TEST(LoadAtomic, UnsignedIntegersComeBack) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    InUse training(world);
    RunState run = training.run();
    const std::vector<at::ScalarType> types{at::kUInt16, at::kUInt32, at::kUInt64};
    for (const at::ScalarType type : types)
      run.values[c10::toString(type)] = torch::arange(1000, 2000).to(type);
    save(folder / "run", run);
    RunState again = training.run();
    load(folder / "run", again);
    for (const at::ScalarType type : types) {
      const at::Tensor tensor = std::get<at::Tensor>(again.values.at(c10::toString(type)));
      require(tensor.scalar_type() == type && tensor.to(at::kLong).equal(torch::arange(1000, 2000)),
              c10::toString(type));
    }
  });
}

TEST(LoadAtomic, ABackgroundSaveThrowsWhatSaveDoes) {
  const TempFolder folder;
  run_ranks(1, [&](World& world) {
    InUse training(world);
    std::ofstream(folder / "file") << "x";
    BackgroundSaver into_file(folder / "file/run");
    into_file.save(training.run());
    bool io = false;
    try {
      into_file.wait();
    } catch (const IoError& error) {
      io = error.code() == ENOTDIR || error.code() == EEXIST;
    }
    require(io, "an IoError");
    const auto other = detail::posix_files().lock(folder / ".lock");
    BackgroundSaver locked(folder.path());
    locked.save(training.run());
    bool refused = false;
    try {
      locked.wait();
    } catch (const CheckpointError&) {
      refused = true;
    }
    require(refused, "a CheckpointError");
  });
  std::atomic<int> missing{0};
  run_ranks(2, [&](World& world) {
    InUse training(world);
    if (world.rank() == 0) {
      BackgroundSaver alone(folder / "alone", {.timeout = std::chrono::milliseconds(300)});
      alone.save(training.run());
      try {
        alone.wait();
      } catch (const RendezvousError&) {
        ++missing;
      }
    }
    Comm::create(world).barrier();
  });
  EXPECT_EQ(missing, 1);
}

}  // namespace
}  // namespace fsdp::testing
