#include "checkpoint/checkpoint_choice.h"

#include <fsdp/error.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "checkpoint/errors.h"
#include "checkpoint/meeting.h"
#include "files/block_file.h"
#include "files/manifest.h"
#include "files/run_folder.h"

namespace fsdp::detail {

namespace {

constexpr int kMostAgain = 100;  // limit of latest checkpoints deleted while they are read
constexpr int kMostLooks = 20;   // limit of reads of a latest that is not being deleted

// True if all files exist, with the size and header they were saved with. Reading all bytes would take long.
bool looks_whole(FileOps& files, const std::string& checkpoint) {
  return error_of([&] {
           const OpenCheckpoint found = find_checkpoint(files, checkpoint);
           const Manifest manifest = Manifest::parse(found.manifest_text, checkpoint);
           for (const SavedFile& file : manifest.files) BlockReader(files, checkpoint, file);
         })
      .empty();
}

std::string words_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
}

[[noreturn]] void rethrow_with(const std::exception_ptr& error, const std::string& hint) {
  try {
    std::rethrow_exception(error);
  } catch (const IoError& io) {
    if (hint.empty()) throw;
    throw IoError(io.doing(), io.path(), io.code(), io.more() + (io.more().empty() ? "" : ". ") + hint);
  } catch (const CheckpointError& damage) {
    if (hint.empty()) throw;
    throw CheckpointError(std::string(damage.what()) + ". " + hint);
  }
}

}  // namespace

CheckpointChoice::CheckpointChoice(FileOps& files, const World& world, std::string path,
                                   const LoadOptions& options)
    : files_(files), world_(world), given_(std::move(path)), target_(given_), options_(options) {}

bool CheckpointChoice::latest_is_new() {
  if (again_ == kMostAgain) return false;
  std::string identity;
  for (int look = 0; identity.empty() && look < kMostLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    (void)error_of([&] {
      const bool one = files_.exists(given_ + "/" + kManifestName);  // a single checkpoint: there is no other
      identity = one ? "none" : to_hex(hash128(find_checkpoint(files_, given_).manifest_text));
    });
  }
  return !identity.empty() && identity != "none" && tried_.insert(identity).second;
}

// The newest checkpoint below the latest.
std::string CheckpointChoice::older() const {
  std::string found;
  (void)error_of([&] {
    if (files_.exists(given_ + "/" + kManifestName)) return;
    const RunFolder run(files_, given_);
    const std::vector<RunFolder::Entry> all = run.entries();
    const std::string latest = run.named_latest();
    bool below = std::none_of(all.begin(), all.end(), [&](const auto& one) { return one.name == latest; });
    for (auto one = all.rbegin(); one != all.rend(); ++one) {
      const std::string path = given_ + "/" + one->name;
      if (below && !passed_.contains(path) && looks_whole(files_, path)) {
        found = path;
        return;
      }
      below = below || one->name == latest;
    }
  });
  return found;
}

void CheckpointChoice::next(const std::exception_ptr& error) {
  Meeting meeting(world_, "looking for another checkpoint in " + given_, options_.timeout);
  std::string verdict;  // "latest", "older " or "none ", and the path of the older one
  if (world_.rank() == 0) {
    if (latest_is_new())
      verdict = "latest";
    else if (const std::string path = older(); options_.fall_back && !path.empty())
      verdict = "older " + path;
    else
      verdict = "none " + path;
  }
  verdict = meeting.from_0(verdict);
  meeting.end();
  if (target_ == given_) first_ = error;
  if (verdict == "latest") {
    ++again_;
    target_ = given_;
    return;
  }
  const std::string path = verdict.substr(verdict.find(' ') + 1);
  if (verdict.starts_with("older")) {
    damaged_.push_back(words_of(error));
    if (world_.rank() == 0) log_warn(damaged_.back() + ". Loading " + path + " instead");
    passed_.insert(path);
    target_ = path;
    return;
  }
  rethrow_with(first_, path.empty() ? ""
                                    : path +
                                          " has all its files: load it by its name, or set "
                                          "LoadOptions::fall_back to go back to it");
}

}  // namespace fsdp::detail
