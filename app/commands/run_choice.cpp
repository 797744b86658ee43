#include "app/commands/run_choice.h"

#include <algorithm>
#include <filesystem>

#include "app/config/batch.h"
#include "trainer/watch/run_folder.h"

namespace fsdp::app {

namespace {

namespace fs = std::filesystem;

// The run of the stage before this one, beside `folder`; empty: this is the first stage.
std::string sibling(const std::string& folder, const config::Resolution& resolved) {
  const auto stage = std::find(resolved.stages.begin(), resolved.stages.end(), resolved.settings.stage());
  if (stage == resolved.stages.begin() || stage == resolved.stages.end()) return "";
  const fs::path path = fs::path(folder).lexically_normal();
  return ((path.has_filename() ? path : path.parent_path()).parent_path() / *(stage - 1)).string();
}

bool has_checkpoint(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(folder + "/latest", ignored);
}

// Silent start weights of the wrong kind cost a run: without the stage before, the user decides.
void start_from_stage_before(const RunRequest& request, config::Resolution& resolved,
                             std::vector<std::string>& problems) {
  const std::string key = "training.init_from";
  const config::Settings& settings = resolved.settings;
  if (settings.peek(key) == "none")
    return resolved.settings.set(key, nullptr, {config::Layer::derived, "none: new weights"});
  if (!settings.peek(key).is_null()) return;
  std::string from = sibling(request.folder, resolved);
  if (from.empty()) return;
  const std::string standard =
      sibling(watch::default_run_folder(settings.name(), settings.stage()), resolved);
  if (!has_checkpoint(from) && has_checkpoint(standard)) from = standard;
  if (!has_checkpoint(from)) {
    const std::string text =
        key + ": " + settings.stage() + " starts from the stage before it, but there is no " +
        "checkpoint in " + from + (from == standard ? "" : " or " + standard) +
        ". Train that stage first, or set " + key + " to a run, or to none for new weights";
    if (request.starts && settings.peek("mode") != "smoke")
      problems.push_back(text);
    else
      resolved.notes.push_back(text);
    return;
  }
  resolved.notes.push_back(key + ": " + resolved.settings.stage() + " starts from the weights of " + from);
  resolved.settings.set(key, from, {config::Layer::derived, "the stage before"});
}

// A run that goes on has the global batch that it began with, on any number of ranks.
void keep_global_batch(const watch::RunFolder& folder, config::Resolution& resolved,
                       std::vector<std::string>& problems) {
  const std::string key = "training.global_batch_size";
  const config::Settings& settings = resolved.settings;
  const config::Settings saved = config::resolve({.config = folder.config()}, {}).settings;
  if (!saved.peek(key).is_number_integer()) return;  // the worker reads it again, and says what is wrong
  const int64_t batch = saved.integer(key);
  if (settings.is_given(key) && settings.peek(key) != batch) {
    problems.push_back(settings.origin(key).text + ": " + key + ": found " + settings.peek(key).dump() +
                       ", expected " + std::to_string(batch) + ", as the run in " + folder.path +
                       " has. Leave it out, or start another run");
    return;
  }
  const config::BatchResult plan =
      config::plan_batch({.batch_size = settings.integer("training.batch_size"),
                          .global_batch_size = batch,
                          .ranks = settings.ranks(),
                          .reproducible = settings.flag("training.reproducible")});
  if (!plan.problem.empty())
    problems.push_back(folder.config() + ": " + key + ": " + plan.problem);
  else if (plan.plan.accumulation != saved.peek("training.gradient_accumulation_steps"))
    resolved.notes.push_back(key + ": " + std::to_string(batch) + ", as the run in " + folder.path +
                             " has, so gradient_accumulation_steps is " +
                             std::to_string(plan.plan.accumulation));
}

std::string holds_a_run(const RunRequest& request) {
  if (request.restart.empty())
    return request.folder +
           " holds a run already. --resume auto goes on with it; --run DIR starts another one elsewhere";
  return request.folder + " holds a run that another job began, and this is " + request.restart +
         ", which goes on with a run of its own job only. --resume auto goes on with it all the same; --run "
         "DIR "
         "starts another one elsewhere";
}

}  // namespace

std::string RunChoice::log_folder() const { return folder.empty() ? "" : watch::RunFolder{folder}.logs(); }

RunChoice choose_run(const RunRequest& request, config::Resolution& resolved,
                     std::vector<std::string>& problems) {
  const config::Settings& settings = resolved.settings;
  const watch::RunFolder folder{request.folder};
  RunChoice choice{.folder = folder.path, .resume = request.resume};
  if (folder.path.empty()) problems.emplace_back("flag --run: found an empty text, expected a folder");
  if (settings.peek("mode") == "smoke") {
    if (request.resume)
      problems.emplace_back("flag --resume: mode smoke keeps nothing, so there is nothing to resume");
    if (request.is_folder_given)
      resolved.notes.emplace_back("flag --run has no effect: mode smoke keeps nothing");
    choice = {};
  }
  const bool resumes = choice.resume && folder.has_run();
  if (!choice.folder.empty() && request.is_first && !choice.resume && folder.has_run())
    (request.starts ? problems : resolved.notes).push_back(holds_a_run(request));
  if (choice.resume && !request.restart.empty())
    resolved.notes.push_back(request.restart + ": goes on with the run in " + folder.path);
  if (!resumes) start_from_stage_before(request, resolved, problems);
  if (resumes && request.is_first && problems.empty()) keep_global_batch(folder, resolved, problems);
  return choice;
}

}  // namespace fsdp::app
