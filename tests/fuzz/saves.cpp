#include "fuzz/saves.h"

#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <filesystem>
#include <stdexcept>

#include "checkpoint/tensor_files.h"
#include "files/run_folder.h"

namespace fsdp::fuzz {

const std::string& Saves::folder(const World& world) {
  if (!folder_.empty()) return folder_;
  const std::string key = "fuzz/folder";
  if (world.rank() == 0) {
    std::string name = (std::filesystem::temp_directory_path() / "fsdp-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    world.store()->set(key, std::vector<uint8_t>(name.begin(), name.end()));
    owner_ = true;
  }
  const auto bytes = world.store()->get(key);
  folder_.assign(bytes.begin(), bytes.end());
  return folder_;
}

Saves::~Saves() {
  saver_.reset();
  second_.reset();
  if (owner_) std::filesystem::remove_all(folder_);
}

BackgroundSaver& Saves::begun(std::unique_ptr<BackgroundSaver>& saver, const World& world) {
  if (!saver)
    saver = std::make_unique<BackgroundSaver>(folder(world) + "/beside", SaveOptions{.keep_last = 1}, 512);
  return *saver;
}

void Saves::save_crowd(const ShardedModel& model, torch::optim::Optimizer& optimizer, const World& world,
                       size_t at) {
  RunState run{
      .model = model, .optimizer = &optimizer, .step = static_cast<int64_t>(at) * 10 + 1, .rng = false};
  begun(saver_, world).save(run);
  ++run.step;
  begun(second_, world).save(run);
  ++run.step;
  const std::string last = fsdp::save(folder(world) + "/beside", run, {.keep_last = 1});
  saver_->wait();
  second_->wait();
  then_ = state_dict(model, {.offload = true});
  if (world.rank() != 0) return;
  const std::string latest = detail::find_checkpoint(detail::posix_files(), folder_ + "/beside").folder;
  if (latest != last) throw std::runtime_error("the latest is " + latest + ", not the last saved, " + last);
  compare();
}

void Saves::save(const ShardedModel& model, torch::optim::Optimizer& optimizer, const World& world,
                 size_t at) {
  begun(saver_, world).wait();
  if (world.rank() == 0) compare();
  then_ = state_dict(model, {.offload = true});
  saver_->save(
      {.model = model, .optimizer = &optimizer, .step = static_cast<int64_t>(at) * 10, .rng = false});
}

void Saves::compare() {
  if (then_.is_empty()) return;
  detail::FileOps& files = detail::posix_files();
  const detail::OpenCheckpoint open = detail::find_checkpoint(files, folder_ + "/beside");
  const detail::Manifest manifest = detail::Manifest::parse(open.manifest_text, open.folder);
  detail::TensorReader reader(files, open.folder, manifest);
  for (const auto& item : then_) {
    if (!manifest.tensors.contains(item.key())) continue;  // another name of a tied parameter
    const at::Tensor& wanted = item.value().boxes.front().tensor;
    const at::Tensor saved = at::empty(wanted.sizes(), wanted.options());
    detail::Held held = detail::make_whole(item.key(), saved);
    reader.fill({held});
    if (!saved.equal(wanted)) throw std::runtime_error("what was saved beside has another " + item.key());
  }
}

}  // namespace fsdp::fuzz
