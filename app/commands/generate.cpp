#include "app/commands/generate.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "app/commands/config_flags.h"
#include "app/commands/worker.h"
#include "app/config/resolve.h"
#include "trainer/data/tokenizer.h"
#include "trainer/generate_request.h"
#include "trainer/watch/run_folder.h"

namespace fsdp::app {

namespace {

namespace fs = std::filesystem;

struct GenerateArguments {
  std::string run;
  train::GenerateRequest request;
  CLI::Option* step = nullptr;
  bool no_average = false;
};

// Steps with a checkpoint in the run's folder.
std::set<int64_t> saved_steps(const std::string& run) {
  constexpr std::string_view kPrefix = "step-";
  std::set<int64_t> steps;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, ignored)) {
    const std::string name = entry.path().filename().string(),
                      digits = name.substr(std::min(name.size(), kPrefix.size()));
    const bool number = !digits.empty() && digits.size() < 19 &&
                        std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
    if (name.starts_with(kPrefix) && number && fs::exists(entry.path() / "manifest.json", ignored))
      steps.insert(std::stoll(digits));
  }
  return steps;
}

std::string listed(const std::set<int64_t>& steps) {
  constexpr size_t kMost = 10;
  std::string text;
  size_t left_out = steps.size() > kMost ? steps.size() - kMost : 0;
  if (left_out > 0) text = "..., ";
  for (const int64_t step : steps) {
    if (left_out > 0) {
      --left_out;
      continue;
    }
    text += (text.empty() || text.ends_with(", ") ? "" : ", ") + std::to_string(step);
  }
  return text;
}

void check_run(const GenerateArguments& given, std::vector<std::string>& problems) {
  const watch::RunFolder folder{given.run};
  if (!fs::exists(folder.config())) {
    problems.push_back(given.run +
                       ": found no config.yaml, expected the folder of a run of `fsdp train`, such as "
                       "runs/example/stage1");
    return;
  }
  const std::set<int64_t> steps = saved_steps(given.run);
  if (steps.empty())
    problems.push_back(given.run + ": found no checkpoint. Let the run save one (checkpoint.every_steps)");
  else if (given.step->count() > 0 && !steps.contains(given.request.step))
    problems.push_back("flag --step: found " + std::to_string(given.request.step) +
                       ", expected one of the saved steps: " + listed(steps));
}

// Comparisons are written so that nan fails them.
void check_flags(const train::GenerateRequest& request, std::vector<std::string>& problems) {
  const auto expect = [&](bool fits, const std::string& flag, const auto& found,
                          const std::string& expected) {
    if (fits) return;
    std::ostringstream text;
    text << "flag --" << flag << ": found " << found << ", expected " << expected;
    problems.push_back(text.str());
  };
  const train::SampleOptions& sample = request.sample;
  expect(request.max_tokens >= 1, "max-tokens", request.max_tokens, "a number from 1 on");
  expect(request.count >= 1, "count", request.count, "a number from 1 on");
  expect(sample.temperature >= 0 && sample.temperature <= 100, "temperature", sample.temperature,
         "a number from 0 (always the most likely token) to 100");
  expect(sample.top_k >= 0, "top-k", sample.top_k, "a number from 1 on, or 0 for all tokens");
  expect(sample.top_p > 0 && sample.top_p <= 1, "top-p", sample.top_p, "a number above 0, at most 1");
  const size_t at = data::find_invalid_utf8(request.prompt);
  expect(at == std::string::npos, "prompt", "byte " + std::to_string(at) + ", which belongs to no character",
         "UTF-8");
}

int generate(GenerateArguments& given) {
  std::vector<std::string> problems;
  check_flags(given.request, problems);
  check_run(given, problems);
  if (!problems.empty()) return print_problems(problems);
  const config::Resolution resolved =
      config::resolve({.config = watch::RunFolder{given.run}.config()}, find_machine());
  if (!resolved.problems.empty()) return print_problems(resolved.problems);
  const std::optional<std::string> worker = find_worker();
  if (!worker) return print_problems({missing_worker()});
  if (given.step->count() == 0) given.request.step = -1;
  given.request.average = !given.no_average;
  const SettingsFile file(resolved.settings);
  become({*worker, "generate", file.path(), given.run, to_json(given.request)}, file);
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "Write text with the model of a run");
  command->footer(
      "The text goes to stdout, everything else to stderr. It ends at the tokenizer's end of text.\n"
      "If the text grows longer than the model's context, its older half is dropped from the context.");
  auto given = std::make_shared<GenerateArguments>();
  train::GenerateRequest& request = given->request;
  command->add_option("RUN", given->run, "The run's folder")->required()->type_name("");
  command->add_option("--prompt", request.prompt, "Text to continue; without it a new text begins")
      ->type_name("TEXT");
  command->add_option("--max-tokens", request.max_tokens, "Largest number of tokens")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--temperature", request.sample.temperature,
                   "Below 1: prefers likely tokens; 0: always the most likely one")
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--top-k", request.sample.top_k, "Only the K most likely tokens; 0: all")
      ->type_name("K")
      ->capture_default_str();
  command
      ->add_option("--top-p", request.sample.top_p,
                   "Only the most likely tokens whose probabilities sum to P")
      ->type_name("P")
      ->capture_default_str();
  command->add_option("--seed", request.sample.seed, "The same seed gives the same text")
      ->type_name("S")
      ->capture_default_str();
  command->add_option("--count", request.count, "Number of texts; their seeds are S, S + 1, ...")
      ->type_name("M")
      ->capture_default_str();
  given->step = command->add_option("--step", request.step, "Step of the checkpoint; without it the latest")
                    ->type_name("STEP");
  command->add_flag("--no-average", given->no_average,
                    "Use the trained weights even if the run averages them (training.ema_decay)");
  command->callback([given, &action] { action = [given] { return generate(*given); }; });
}

}  // namespace fsdp::app
