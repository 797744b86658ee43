// Checkpoints that a random program writes.
#pragma once

#include <fsdp/fsdp.h>

#include <memory>
#include <string>

namespace fsdp::fuzz {

class Saves {
 public:
  Saves() = default;
  ~Saves();
  Saves(const Saves&) = delete;
  Saves& operator=(const Saves&) = delete;

  // One for all ranks, gone at the end.
  const std::string& folder(const World& world);

  // Saves in the background, after it has compared what the last call saved with what the model held then.
  void save(const ShardedModel& model, torch::optim::Optimizer& optimizer, const World& world, size_t at);
  // Two savers and save() in the same folder, at once; the latest is compared with what the model holds.
  void save_crowd(const ShardedModel& model, torch::optim::Optimizer& optimizer, const World& world,
                  size_t at);

 private:
  BackgroundSaver& begun(std::unique_ptr<BackgroundSaver>& saver, const World& world);
  void compare();

  std::string folder_;
  bool owner_ = false;
  std::unique_ptr<BackgroundSaver> saver_, second_;
  StateDict then_{"tensor"};
};

}  // namespace fsdp::fuzz
