// Promise: a way to gather and a way to reduce are files of their own. These two go through the file system;
// src/ does not know them, and a model trained by them has the bits of one that was not.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/engine.h"
#include "support/twins.h"

namespace fsdp::testing {
namespace {

namespace fs = std::filesystem;
using detail::GatherFrom;
using detail::SlotMemory;

// One tensor per rank and number, in files of a folder.
class Exchange {
 public:
  Exchange(const World& world, fs::path folder, std::string name)
      : world_(world), folder_(std::move(folder)), name_(std::move(name)) {}

  void write(const at::Tensor& tensor) {
    const fs::path path = place(world_.rank(), ++number_);
    std::ofstream(path.string() + ".new", std::ios::binary)
        .write(static_cast<const char*>(tensor.const_data_ptr()),
               static_cast<std::streamsize>(tensor.nbytes()));
    fs::rename(path.string() + ".new", path);
  }
  // What `rank` wrote last into `tensor`.
  void read(int rank, const at::Tensor& tensor) const {
    const fs::path path = place(rank, number_);
    for (int tries = 0; !fs::exists(path); ++tries) {
      require(tries < 20000, "no file " + path.string());
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    std::ifstream(path, std::ios::binary)
        .read(static_cast<char*>(tensor.mutable_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  }

 private:
  fs::path place(int rank, int number) const {
    return folder_ / (name_ + "." + std::to_string(number) + "." + std::to_string(rank));
  }

  const World& world_;
  fs::path folder_;
  std::string name_;
  int number_ = 0;
};

class FileGather final : public detail::GatherPath {
 public:
  FileGather(const World& world, const fs::path& folder, const std::string& name, const at::Tensor& shard)
      : files_(world, folder, name + ".gather"), ranks_(world.size()), shard_(shard) {}

  SlotMemory memory(GatherFrom /*from*/) const override { return SlotMemory::own; }
  at::Tensor start(const at::Tensor& slot, GatherFrom /*from*/, const std::string& /*label*/) override {
    files_.write(shard_);
    return slot_ = slot;
  }
  void finish() override {
    if (!slot_.defined()) return;
    const int64_t n = shard_.numel();
    for (int r = 0; r < ranks_; ++r) files_.read(r, slot_.narrow(0, r * n, n));
    slot_ = at::Tensor();
  }
  void release() override { finish(); }
  void drop() override { slot_ = at::Tensor(); }
  void gather_master(const at::Tensor& whole, std::optional<int> /*root*/,
                     const std::string& label) override {
    start(whole, GatherFrom::row, label);
    finish();
  }

 private:
  Exchange files_;
  int ranks_;
  at::Tensor shard_, slot_;
};

class FileReduce final : public detail::ReducePath {
 public:
  FileReduce(const World& world, const fs::path& folder, const std::string& name)
      : world_(world), files_(world, folder, name + ".reduce") {}

  Work start(const at::Tensor& sum, const at::Tensor& buffer, const std::string& /*label*/) override {
    files_.write(buffer);
    std::vector<at::Tensor> parts;
    for (int r = 0; r < world_.size(); ++r) {
      const at::Tensor whole = at::empty_like(buffer);
      files_.read(r, whole);
      parts.push_back(whole.narrow(0, world_.rank() * sum.numel(), sum.numel()));
    }
    at::Tensor(sum).copy_(tree_sum(parts).div_(world_.size()));
    return {};
  }

 private:
  const World& world_;
  Exchange files_;
};

class Folder {
 public:
  Folder() : path(fs::temp_directory_path() / ("fsdp_paths_" + std::to_string(::getpid()))) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  const fs::path path;
};

State train(const World& world, const std::string& learner, const fs::path* through_files) {
  auto model = fully_shard(world, make_learner(learner), {.wrap = by_size(200), .share_shards = false});
  if (through_files != nullptr) {
    for (const auto& unit : detail::current(model.engine()).units)
      for (size_t i = 0; i < unit->regions.size(); ++i) {
        detail::UnitRegion& region = *unit->regions[i];
        if (region.spec.in_place()) continue;
        const std::string name = unit->name() + "." + std::to_string(i);
        region.gather_path = std::make_unique<FileGather>(world, *through_files, name, region.shard);
        region.reduce_path = std::make_unique<FileReduce>(world, *through_files, name);
      }
  }
  train_sharded(model, world, /*steps=*/4, Optim::adamw);
  return state_of(model);
}

TEST(Paths, OnesThatOnlyThisTestKnowsTrainAModel) {
  const Folder folder;
  for (const int ranks : {2, 4}) {
    const fs::path mine = folder.path / std::to_string(ranks);
    fs::create_directories(mine);
    run_ranks(ranks, [&](World& world) {
      const State wanted = train(world, "mlp", nullptr);
      require_same(train(world, "mlp", &mine), wanted);
    });
    const auto written = std::distance(fs::directory_iterator(mine), fs::directory_iterator());
    EXPECT_GT(written, 4 * 2 * ranks) << "gathers and reduces went through files";
  }
}

}  // namespace
}  // namespace fsdp::testing
