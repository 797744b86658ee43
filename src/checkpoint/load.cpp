#include <fsdp/error.h>

#include <algorithm>
#include <list>
#include <set>

#include "checkpoint/checkpoint_choice.h"
#include "checkpoint/errors.h"
#include "checkpoint/meeting.h"
#include "checkpoint/member_load.h"
#include "checkpoint/run_state.h"
#include "checkpoint/save.h"
#include "checkpoint/tensor_files.h"
#include "files/hf_agreement.h"
#include "files/hf_names.h"
#include "files/open_checkpoint.h"
#include "files/run_folder.h"
#include "launch/in_call.h"
#include "runtime/model.h"

namespace fsdp {

namespace detail {

namespace {

void add_list(std::string& text, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += std::string("\n  ") + what + " (" + std::to_string(names.size()) + "):";
  for (const std::string& name : names) text += " " + name + (&name == &names.back() ? "" : ",");
}

void require_fit(const LoadReport& report, const Manifest& manifest) {
  std::string text;
  add_list(text, "missing in the checkpoint", report.missing);
  add_list(text, "unexpected in the checkpoint", report.unexpected);
  add_list(text, "different", report.mismatched);
  add_list(text, "of the optimizer", report.optimizer);
  if (text.empty()) return;
  if (manifest.run.contains(kFiltered))
    text +=
        "\nIt was saved with SaveOptions::filter: load it with the same filter, into a model that has the "
        "other values already";
  throw CheckpointError("the checkpoint " + report.path + " does not fit the model; nothing was loaded." +
                        text +
                        "\nLoadOptions has strict = false, rename and filter for what is meant to differ");
}

// Everything a load needs, prepared before anything is changed.
struct Prepared {
  Manifest manifest;
  std::list<MemberLoad> members;
  PreparedRun run;
  std::optional<TensorReader> reader;
};

std::vector<std::string> module_names(const Model& model) {
  std::vector<std::string> names;
  for (const UnitParam* param : model.params)
    names.insert(names.end(), param->names.begin(), param->names.end());
  for (const auto& [name, tensor] : own_tensors(model)) names.push_back(name);
  return names;
}

std::string in_part(const Member& member) {
  return member.name.empty() ? "" : " for the part '" + member.name + "'";
}

void add_unexpected(const Prepared& prepared, const std::vector<Member>& members, LoadReport& report) {
  std::set<std::string> seen;
  for (const MemberLoad& member : prepared.members) seen.merge(member.seen());
  const Manifest& manifest = prepared.manifest;
  for (const auto& [name, tensor] : manifest.tensors)
    if (!seen.contains(name) && manifest.is_of_model(name, tensor) &&
        !(manifest.foreign && is_computed_today(name)) && !is_of_absent_part(manifest, members, name))
      report.unexpected.push_back(name);
}

// Checks everything that can be refused without reading tensors.
void prepare(Prepared& prepared, RunState& run, const LoadOptions& options, LoadReport& report) {
  const Manifest& manifest = prepared.manifest;
  const std::vector<Member> members = members_of(run);
  const Model& own = *members.front().model;
  report.step = manifest.step;
  report.ranks = manifest.world;
  check_hf_config(manifest, module_names(own), run.model_config, options.strict && !options.filter,
                  report.path);
  for (const Member& member : members) {
    const MemberLoad* first = prepared.members.empty() ? nullptr : &prepared.members.front();
    prepared.members.emplace_back(member, manifest, options, first).prepare(report);
  }
  if (!options.filter) add_unexpected(prepared, members, report);
  if (!options.weights_only) {
    prepared.run = prepare_run(run, own, manifest);
    report.rank_values = prepared.run.all_values;
  }
  if (options.strict) require_fit(report, manifest);
  for (const MemberLoad& member : prepared.members)
    if (member.starts_anew())
      report.optimizer.push_back("the checkpoint has no optimizer" + in_part(member.member()) +
                                 "; that of the run has done no step and stays as it is");
}

// Reads tensors that have memory of their own. If there is something to lose, reads and checks the rest.
void read_ahead(Prepared& prepared, const LoadOptions& options) {
  TensorReader& reader = *prepared.reader;
  reader.fill(prepared.run.holes);
  const bool something_to_lose =
      std::any_of(prepared.members.begin(), prepared.members.end(), [](const MemberLoad& one) {
        const Member& member = one.member();
        return member.model->called || (member.optimizer != nullptr && !member.optimizer->state().empty());
      });
  for (const MemberLoad& member : prepared.members)
    member.read_ahead(reader, options.verify_first.value_or(something_to_lose));
}

// Prepares all state that may be refused when it is set.
void rehearse(Prepared& prepared, const Model& model, const LoadOptions& options, LoadReport& report) {
  check_generators(prepared.run, model);
  const size_t before = report.optimizer.size();
  for (MemberLoad& member : prepared.members) member.rehearse(report);
  if (options.strict && report.optimizer.size() > before) require_fit(report, prepared.manifest);
}

// An optimizer that does not fit on one rank is loaded on no rank.
void drop_unfit(Meeting& meeting, Prepared& prepared) {
  std::string fit;
  for (const MemberLoad& member : prepared.members) fit += member.fits() ? '1' : '0';
  for (const std::string& theirs : meeting.to_0(fit))
    for (size_t i = 0; i < fit.size(); ++i)
      if (i >= theirs.size() || theirs[i] == '0') fit[i] = '0';
  fit = meeting.from_0(fit);
  size_t next = 0;
  for (MemberLoad& member : prepared.members)
    if (fit[next++] == '0') member.drop_optimizer();
}

using HalfLoaded = std::vector<std::pair<Model*, std::string>>;  // Model::half_loaded of every model

HalfLoaded half_loaded_of(const RunState& run) {
  HalfLoaded all;
  for (Model* model : models_of(run)) all.emplace_back(model, model->half_loaded);
  return all;
}

// A load, which may take several attempts.
class Loading {
 public:
  Loading(FileOps& files, const std::string& path, RunState& run, const LoadOptions& options)
      : files_(files),
        run_(run),
        model_(model_of(run.model.engine())),
        options_(options),
        choice_(files, model_.world, path, options),
        before_(half_loaded_of(run)) {}

  LoadReport load() {
    for (const auto& [model, words] : before_) model->check_between_steps("load()");
    const at::NoGradGuard no_grad;
    for (;;) {
      std::exception_ptr unreadable;
      try {
        return attempt();
      } catch (const IoError&) {
        unreadable = std::current_exception();
      } catch (const CheckpointError&) {
        if (!reading_) throw;
        unreadable = std::current_exception();
      }
      choice_.next(unreadable);
    }
  }

 private:
  LoadReport attempt() {
    const InMeeting call(model_.world, "load('" + choice_.path() + "')");
    Meeting meeting(model_.world, "loading " + choice_.path(), options_.timeout);
    LoadReport report;
    Prepared prepared;
    open(meeting, prepared, report);
    reading_ = false;
    meeting.agree(error_of([&] { prepare(prepared, run_, options_, report); }));
    if (!options_.strict) drop_unfit(meeting, prepared);
    reading_ = true;
    meeting.agree(error_of([&] { read_ahead(prepared, options_); }));
    reading_ = false;
    meeting.agree(error_of([&] { rehearse(prepared, model_, options_, report); }));
    if (!options_.strict) drop_unfit(meeting, prepared);
    for (const MemberLoad& member : prepared.members) member.report_casts(report);
    // Waits for ranks that read shards; by now all ranks are known to come this far.
    meeting.agree(error_of([&] {
      for (const auto& [model, words] : before_) announce_writes(*model);
    }));
    reading_ = true;
    write(meeting, prepared, report);
    meeting.end();
    report.damaged = choice_.damaged();
    return report;
  }

  void open(Meeting& meeting, Prepared& prepared, LoadReport& report) {
    const bool first = model_.world.rank() == 0;
    AnyCheckpoint opened;
    reading_ = true;
    meeting.agree(error_of([&] {
      if (!first) return;
      opened = open_checkpoint(files_, choice_.path());
      choice_.opened(opened.identity);
    }));
    report.path = meeting.from_0(opened.folder);
    const std::string identity = meeting.from_0(opened.identity);
    meeting.agree(error_of([&] {
      if (!first) opened = open_checkpoint(files_, report.path);
      if (opened.identity != identity)
        throw CheckpointError(
            report.path + " is not the same as on rank 0. A checkpoint needs a folder that all ranks share");
    }));
    prepared.manifest = std::move(opened.manifest);
    prepared.reader.emplace(files_, report.path, prepared.manifest);
  }

  // From here on an error leaves the models with values of two checkpoints.
  void write(Meeting& meeting, Prepared& prepared, const LoadReport& report) {
    std::set<std::string> names;
    for (const MemberLoad& member : prepared.members)
      names.insert(member.names().begin(), member.names().end());
    half_.insert(names.begin(), names.end());
    for (const auto& [model, words] : before_)
      model->half_loaded = "fsdp: the parameters are half those of " + report.path +
                           ", which could not be read to its end. load() a checkpoint that is whole, or "
                           "shard a new module";
    meeting.agree(error_of([&] {
      for (MemberLoad& member : prepared.members) member.fill(*prepared.reader);
    }));
    meeting.agree(error_of([&] {
      for (MemberLoad& member : prepared.members) member.attach();
      if (!options_.weights_only) set_run(run_, model_, prepared.manifest, prepared.run);
    }));
    const bool all = !options_.filter && report.missing.empty() && report.mismatched.empty();
    const bool repaired = std::includes(names.begin(), names.end(), half_.begin(), half_.end());
    for (const auto& [model, words] : before_)
      if (all || repaired) model->half_loaded = all ? "" : words;
  }

  FileOps& files_;
  RunState& run_;
  Model& model_;
  const LoadOptions& options_;
  CheckpointChoice choice_;
  const HalfLoaded before_;
  bool reading_ = true;         // a CheckpointError means damage: another checkpoint may be whole
  std::set<std::string> half_;  // tensors that an attempt has written to
};

}  // namespace

LoadReport load_run(FileOps& files, const std::string& path, RunState& run, const LoadOptions& options) {
  return Loading(files, path, run, options).load();
}

}  // namespace detail

LoadReport load(const std::string& folder, RunState& run, const LoadOptions& options) {
  return detail::load_run(detail::posix_files(), folder, run, options);
}

bool has_checkpoint(const std::string& folder) {
  detail::FileOps& files = detail::posix_files();
  return files.exists(folder + "/" + detail::kManifestName) ||
         detail::RunFolder(files, folder).latest().has_value();
}

}  // namespace fsdp
