#include "checkpoint/save.h"

#include <fsdp/error.h>
#include <fsdp/version.h>
#include <unistd.h>

#include <thread>

#include "base/log.h"
#include "checkpoint/errors.h"
#include "checkpoint/meeting.h"
#include "checkpoint/members.h"
#include "checkpoint/run_state.h"
#include "checkpoint/tensor_files.h"
#include "files/run_folder.h"
#include "launch/in_call.h"
#include "launch/world_state.h"
#include "runtime/buffers.h"
#include "runtime/model.h"

namespace fsdp {

namespace detail {

namespace {

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

// Writes this rank's part of the save. Returns its part of the manifest.
Manifest write_part(FileOps& files, const std::string& begun, int rank, const Snapshot& snapshot,
                    Manifest part, const Written& written) {
  part.aliases = snapshot.aliases;
  part.run = snapshot.run;
  write_tensors(files, begun, rank, "model", snapshot.model, part, written);
  write_tensors(files, begun, rank, "state", snapshot.state, part, written);
  return part;
}

Manifest joined(const std::vector<std::string>& parts, Manifest manifest) {
  Json rank_values = Json::array();
  bool any = false;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const std::string where = "what rank " + std::to_string(rank) + " saved";
    Json part = parse_json(parts[rank], where);
    rank_values.push_back(part.at("run").value(kRankValues, Json::object()));
    any = part["run"].erase(kRankValues) > 0 || any;
    manifest.add_part(part, where);
  }
  if (any) manifest.run[kRankValues] = std::move(rank_values);
  manifest.check("the checkpoint to be");
  return manifest;
}

// The parameter that a tensor of the state is a moment of; empty for values and generators. See Note [Names
// of moments].
std::string param_of_moment(const std::string& name) {
  const std::string prefix = "state.";
  return name.starts_with(prefix) ? name.substr(prefix.size(), name.rfind('.') - prefix.size()) : "";
}

// Leaves out filtered parameters and their moments.
void apply_filter(Snapshot& snapshot, const std::function<bool(const std::string&)>& wanted) {
  const auto leave_out = [&](std::vector<Held>& tensors, auto name_of) {
    std::erase_if(tensors, [&](const Held& held) {
      const std::string name = name_of(held.name);
      return !name.empty() && !wanted(name);
    });
  };
  leave_out(snapshot.model, [](const std::string& name) { return name; });
  leave_out(snapshot.state, &param_of_moment);
  std::erase_if(snapshot.aliases, [&](const auto& alias) { return !wanted(alias.second); });
  snapshot.run[kFiltered] = true;
}

void check_best(const RunState& run, const std::string& name) {
  const auto found = run.values.find(name);
  const bool number = found != run.values.end() && (std::holds_alternative<double>(found->second) ||
                                                    std::holds_alternative<int64_t>(found->second));
  TORCH_CHECK(number, "fsdp: SaveOptions::keep_best is '", name,
              "', but RunState::values has no number of that name. Set it on rank 0 before save()");
}

void retire_old(RunFolder& folder, const std::string& path, const std::string& newest,
                const SaveOptions& options) {
  const std::string words = error_of([&] {
    const std::string best =
        options.keep_best.empty() ? "" : folder.best(newest, options.keep_best, options.best_is_highest);
    folder.retire(newest, options.keep_last, options.keep_every, best);
  });
  if (!words.empty()) log_warn("an old checkpoint in " + path + " could not be deleted: " + words);
}

}  // namespace

BegunSave begin_save(FileOps& files, const std::string& folder, const RunState& run,
                     const SaveOptions& options, bool in_background) {
  const Model& model = model_of(run.model.engine());
  BegunSave save;
  save.error = error_of([&] {
    save.turn = std::make_unique<SaveTurn>(model.world, files, folder);
    if (!options.keep_best.empty() && model.world.rank() == 0) check_best(run, options.keep_best);
    save.snapshot = take_snapshot(run, in_background);
    if (!run.rank_values.empty()) save.snapshot.run[kRankValues] = values_json(run.rank_values);
    if (options.filter) apply_filter(save.snapshot, options.filter);
  });
  return save;
}

std::string write_save(FileOps& files, const std::string& path, Meeting& meeting, const BegunSave& save,
                       const SaveOptions& options, const Written& written) {
  const World& world = meeting.world();
  const Snapshot& snapshot = save.snapshot;
  const bool first = world.rank() == 0;
  RunFolder folder(files, path);
  if (save.turn) save.turn->wait();
  meeting.agree(save.error);
  std::string begun, id;
  meeting.agree(error_of([&] {
    if (!first) return;
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
    std::string part;
    meeting.agree(error_of([&] {
      require_shared(files, begun);
      part = json_text(write_part(files, begun, world.rank(), snapshot, empty, written).part(),
                       "what rank " + std::to_string(world.rank()) + " saves");
    }));
    const std::vector<std::string> parts = meeting.to_0(part);
    meeting.agree(error_of([&] {
      if (first) name = folder.commit(begun, snapshot.step, joined(parts, empty).to_text());
    }));
  } catch (...) {
    // The unfinished folder is of no use. If it cannot be deleted now, the next save does it.
    if (first) (void)error_of([&] { remove_tree(files, begun); });
    throw;
  }
  if (first) retire_old(folder, path, name, options);
  name = meeting.from_0(name);
  meeting.end();
  return path + "/" + name;
}

std::string save_run(FileOps& files, const std::string& path, const RunState& run,
                     const SaveOptions& options) {
  Model& model = model_of(run.model.engine());
  before_save(run, options);
  const InMeeting call(model.world, "save('" + path + "')");
  Meeting meeting(model.world, "saving " + path, options.timeout);
  const BegunSave save = begin_save(files, path, run, options, false);
  return write_save(files, path, meeting, save, options);
}

void before_save(const RunState& run, const SaveOptions& options) {
  const Model& own = model_of(run.model.engine());
  TORCH_CHECK(own.world.state().owner.is_this(), "fsdp: save() in process ", ::getpid(),
              ", a forked child of process ", own.world.state().owner.pid(),
              ". Save in the process that called fsdp::init()");
  TORCH_CHECK(run.step >= 0, "fsdp: save() of step ", run.step);
  for (Model* model : models_of(run)) {
    model->check_between_steps("save()");
    TORCH_CHECK(model->half_loaded.empty(), model->half_loaded);
  }
  if (!options.average_buffers) return;
  for (Model* model : models_of(run)) sync_buffers(model->module, model->mesh.all, BufferSync::average);
}

}  // namespace detail

std::string save(const std::string& folder, const RunState& run, const SaveOptions& options) {
  return detail::save_run(detail::posix_files(), folder, run, options);
}

}  // namespace fsdp
