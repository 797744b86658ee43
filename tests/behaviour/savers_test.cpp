// Promise: saves into one folder follow each other, whoever asks for them, and none damages another.
#include <fsdp/checkpoint_files.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <random>

#include "behaviour/checkpoint_net.h"
#include "checkpoint/save.h"
#include "support/slow_files.h"

namespace fsdp::testing {
namespace {

// A model whose values are the number of its step: what a checkpoint holds can be told from its name.
struct Numbered {
  explicit Numbered(const World& world) : model(fully_shard(world, torch::nn::Linear(9, 7))) {}
  void set(int64_t step) {
    const at::NoGradGuard no_grad;
    for (at::Tensor slice : model.parameters()) slice.fill_(static_cast<double>(step));
  }
  RunState run(int64_t step) { return {.model = model, .step = step, .rng = false}; }
  bool is(int64_t step) const {
    const auto same = [&](const at::Tensor& slice) { return (slice == step).all().item<bool>(); };
    const auto slices = model.parameters();
    return std::all_of(slices.begin(), slices.end(), same);
  }

  Sharded<torch::nn::LinearImpl> model;
};

struct Counts {
  int64_t saves = 0, loads = 0, errors = 0, damaged = 0, lost = 0;
  std::string first_error;
};

// A random program of savers, save() and load() in one folder. The same on every rank.
class Program {
 public:
  Program(World& world, std::string folder, unsigned number, Counts& counts)
      : world_(world),
        folder_(std::move(folder)),
        random_(number),
        counts_(counts),
        options_{.keep_last = 1 + pick(3), .timeout = std::chrono::seconds(60)},
        training_(world),
        loaded_(world) {
    files_.milliseconds = static_cast<int>(pick(4));
  }

  void run() {
    {
      const int64_t room = pick(2) == 0 ? 0 : INT64_MAX;
      BackgroundSaver often(folder_, options_, room, files_);
      BackgroundSaver seldom(pick(2) == 0 ? folder_ : folder_ + "/.", options_, INT64_MAX, files_);
      const int64_t length = 3 + pick(8);
      for (int64_t i = 0; i < length; ++i) act(often, seldom);
      if (asked_.empty() || pick(4) > 0) save_here();
      for (BackgroundSaver* saver : {&often, &seldom}) attempt([&] { saver->wait(); });
    }
    Comm::create(world_).barrier();
    if (world_.rank() == 0) check_folder();
    Comm::create(world_).barrier();
  }

 private:
  int64_t pick(int64_t most) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(most)); }

  void act(BackgroundSaver& often, BackgroundSaver& seldom) {
    const int64_t kind = pick(9);
    if (kind < 4) {
      next_step();
      attempt([&] { (kind < 2 ? often : seldom).save(training_.run(step_)); });
      asked_.push_back(step_);
    } else if (kind == 4) {
      save_here();
    } else if (kind == 5) {
      attempt([&] { often.wait(); });
    } else {
      if (!saved_here_) save_here();
      load_here();
    }
  }

  void next_step() {
    training_.set(++step_);
    if (world_.rank() == 0) ++counts_.saves;
  }

  void save_here() {
    next_step();
    attempt([&] { detail::save_run(files_, folder_, training_.run(step_), options_); });
    asked_.push_back(step_);
    saved_here_ = true;
  }

  void load_here() {
    if (world_.rank() == 0) ++counts_.loads;
    RunState run = loaded_.run(0);
    attempt([&] {
      load(folder_, run);
      if (!loaded_.is(run.step) && world_.rank() == 0) ++counts_.damaged;
    });
  }

  void attempt(const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception& error) {
      if (world_.rank() != 0) return;
      ++counts_.errors;
      if (counts_.first_error.empty()) counts_.first_error = error.what();
    }
  }

  // The newest ones that were asked for are there, no others, and all are whole.
  void check_folder() {
    const size_t kept = std::min(asked_.size(), static_cast<size_t>(options_.keep_last));
    for (size_t i = asked_.size() - kept; i < asked_.size(); ++i) {
      std::string digits = std::to_string(asked_[i]);
      digits.insert(0, 8 - digits.size(), '0');
      const std::string path = folder_ + "/step-" + digits;
      if (!std::filesystem::exists(path)) {
        ++counts_.lost;
        continue;
      }
      if (!holds(path, asked_[i])) ++counts_.damaged;
    }
    const auto& names = detail::posix_files().list(folder_);
    const auto is_step = [](const std::string& name) { return name.starts_with("step-"); };
    if (static_cast<size_t>(std::count_if(names.begin(), names.end(), is_step)) != kept) ++counts_.lost;
    if (kept > 0 && !holds(folder_, asked_.back())) ++counts_.lost;
  }

  static bool holds(const std::string& path, int64_t step) {
    try {
      verify_checkpoint(path);
      for (const auto& [name, tensor] : read_checkpoint(path))
        if (!(tensor == step).all().item<bool>()) return false;
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  World& world_;
  std::string folder_;
  std::mt19937 random_;
  Counts& counts_;
  SaveOptions options_;
  SlowFiles files_;
  Numbered training_, loaded_;
  int64_t step_ = 0;
  std::vector<int64_t> asked_;  // steps
  bool saved_here_ = false;     // a save() has ended: there is a checkpoint
};

TEST(Savers, RandomProgramsInOneFolderLoseNothing) {
  const int programs = repeats(30, 1000);
  const unsigned first = seed();
  Counts counts;
  for (int i = 0; i < programs; ++i) {
    const TempFolder folder;
    const unsigned number = first * 10000 + static_cast<unsigned>(i);
    run_ranks(1 + i % 2, [&](World& world) { Program(world, folder / "run", number, counts).run(); });
  }
  std::cout << programs << " programs, " << counts.saves << " saves, " << counts.loads
            << " loads beside: " << counts.errors << " errors, " << counts.damaged << " damaged, "
            << counts.lost << " lost\n";
  EXPECT_EQ(counts.errors, 0) << counts.first_error;
  EXPECT_EQ(counts.damaged, 0);
  EXPECT_EQ(counts.lost, 0);
}

TEST(Savers, TakeTheirOrderFromTheCalls) {
  const TempFolder folder;
  SlowFiles slow;
  slow.milliseconds = 60;
  run_both(2, [&](World& world) {
    Numbered training(world);
    BackgroundSaver first(folder / "run", {}, INT64_MAX, slow), second(folder / "run", {}, INT64_MAX);
    training.set(5);
    first.save(training.run(5));
    training.set(4);
    second.save(training.run(4));  // on a fast disk: it would be done first
    training.set(3);
    require(save(folder / "run", training.run(3)) == folder / "run/step-00000003", "the path");
    require(!first.busy() && !second.busy(), "save() waits for those before it");
    RunState loaded = training.run(0);
    load(folder / "run", loaded);
    require(loaded.step == 3, "the last one asked for is the latest");
    Comm::create(world).barrier();
    if (world.rank() == 0) std::filesystem::remove_all(folder / "run");
    Comm::create(world).barrier();
  });
}

TEST(Savers, KnowAFolderByAnyPath) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "real");
  std::filesystem::create_symlink(folder / "real", folder / "link");
  run_ranks(2, [&](World& world) {
    Numbered training(world);
    int64_t step = 0;
    for (const char* path : {"real", "./real", "link", "link/", "real/../real"}) {
      training.set(++step);
      require(words_of([&] { save(folder / path, training.run(step)); }) == "not refused", path);
    }
    RunState run = training.run(0);
    load(folder / "real", run);
    require(run.step == step, "one folder");
  });
}

// 0: another process can save there. 1: it is refused.
int save_elsewhere(const std::string& folder) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = detail::posix_files().lock(folder + "/.lock");
    ::_exit(lock ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Savers, LockAFolderThatWasDeletedAndMadeAgain) {
  const TempFolder folder;
  run_processes(1, [&](World& world) {
    Numbered training(world);
    for (int again = 0; again < 3; ++again) {
      save(folder / "run", training.run(1));
      require(save_elsewhere(folder / "run") == 1, "it is locked");
      std::filesystem::remove_all(folder / "run");
    }
    save(folder / "run", training.run(1));
    std::filesystem::remove(folder / "run/.lock");
    save(folder / "run", training.run(2));
    require(save_elsewhere(folder / "run") == 1, "it is locked again");
  });
}

}  // namespace
}  // namespace fsdp::testing
