#include "checkpoint/save.h"

#include <fsdp/error.h>
#include <fsdp/version.h>

#include <mutex>
#include <thread>

#include "base/log.h"
#include "checkpoint/errors.h"
#include "checkpoint/meeting.h"
#include "checkpoint/tensor_files.h"
#include "files/run_folder.h"
#include "launch/world_state.h"
#include "runtime/buffers.h"
#include "runtime/model.h"

namespace fsdp {

namespace detail {

namespace {

// Held until the world ends: two runs in one folder would delete each other's checkpoints.
void lock_folder(const World& world, RunFolder& folder, std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();  // one folder, one lock
  const std::lock_guard guard(world.state().locks_mutex);
  auto& lock = world.state().locks[path];
  if (!lock) lock = folder.lock();
  if (!lock)
    throw CheckpointError("another process saves into " + path +
                          ". Give every run a folder of its own, or end the other one first");
}

// On a network file system another host may see a new folder a little later.
void require_shared(const FileOps& files, const std::string& folder) {
  for (int tries = 0; tries < 50; ++tries) {
    if (files.exists(folder)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  throw CheckpointError(
      "the folder " + folder +
      ", which rank 0 has just made, is not there. A checkpoint needs a folder that all ranks "
      "share: on a network file system, or ranks of one host");
}

// What this rank saves, written. What the manifest says of it.
Manifest write_part(FileOps& files, const std::string& begun, int rank, const Snapshot& snapshot,
                    Manifest part, const Written& written) {
  part.aliases = snapshot.aliases;
  part.run = snapshot.run;
  write_tensors(files, begun, rank, "model", snapshot.model, part, written);
  write_tensors(files, begun, rank, "state", snapshot.state, part, written);
  return part;
}

Manifest joined(const std::vector<std::string>& parts, Manifest manifest) {
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const std::string where = "what rank " + std::to_string(rank) + " saved";
    manifest.add_part(parse_json(parts[rank], where), where);
  }
  manifest.check("the checkpoint to be");
  return manifest;
}

}  // namespace

std::string write_snapshot(FileOps& files, const std::string& path, Meeting& meeting,
                           const Snapshot& snapshot, const SaveOptions& options, const std::string& error,
                           const Written& written) {
  const World& world = meeting.world();
  const bool first = world.rank() == 0;
  RunFolder folder(files, path);
  meeting.agree(error);
  std::string begun, id;
  meeting.agree(error_of([&] {
    if (!first) return;
    lock_folder(world, folder, path);
    id = new_save_id();
    begun = folder.begin(snapshot.step, id);
  }));
  id = meeting.from_0(id);
  begun = meeting.from_0(begun);
  const Manifest empty{.id = id,
                       .step = snapshot.step,
                       .world = world.size(),
                       .writer = std::string("fsdp.cpp ") + version(),
                       .files = {},
                       .tensors = {},
                       .aliases = {}};
  std::string name;
  try {
    Manifest part;
    meeting.agree(error_of([&] {
      require_shared(files, begun);
      part = write_part(files, begun, world.rank(), snapshot, empty, written);
    }));
    const std::vector<std::string> parts = meeting.to_0(part.part().dump());
    meeting.agree(error_of([&] {
      if (first) name = folder.commit(begun, snapshot.step, joined(parts, empty).to_text());
    }));
  } catch (...) {
    // What was begun is of no use. If it cannot be deleted now, the next save does it.
    if (first) (void)error_of([&] { remove_tree(files, begun); });
    throw;
  }
  if (first)
    if (const std::string words =
            error_of([&] { folder.retire(name, options.keep_last, options.keep_every); });
        !words.empty())
      log_warn("an old checkpoint in " + path + " could not be deleted: " + words);
  name = meeting.from_0(name);
  meeting.end();
  return path + "/" + name;
}

std::string save_run(FileOps& files, const std::string& path, const RunState& run,
                     const SaveOptions& options) {
  Model& model = model_of(run.model.engine());
  check_can_save(run);
  if (options.average_buffers) sync_buffers(model.module, model.mesh.all, BufferSync::average);
  Meeting meeting(model.world, "saving " + path, options.timeout);
  Snapshot snapshot;
  const std::string error = error_of([&] { snapshot = take_snapshot(run, model, false); });
  return write_snapshot(files, path, meeting, snapshot, options, error);
}

void check_can_save(const RunState& run) {
  Model& model = model_of(run.model.engine());
  model.check_between_steps("save()");
  TORCH_CHECK(model.half_loaded.empty(), model.half_loaded);
  TORCH_CHECK(run.step >= 0, "fsdp: save() of step ", run.step);
}

}  // namespace detail

std::string save(const std::string& folder, const RunState& run, const SaveOptions& options) {
  return detail::save_run(detail::posix_files(), folder, run, options);
}

}  // namespace fsdp
