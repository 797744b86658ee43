#include "app/commands/ctl.h"

#include <fsdp/error.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "app/exit_codes.h"
#include "app/output.h"
#include "trainer/control/control_client.h"
#include "trainer/watch/run_folder.h"
#include "trainer/watch/text.h"

namespace fsdp::app {

namespace {

namespace fs = std::filesystem;

struct CtlArguments {
  std::string run, request;
  double timeout = 0;
  CLI::Option* has_timeout = nullptr;
  bool json = false;
};

int fail(const std::string& text, int code) {
  std::cerr << "fsdp: " << printable(text) << "\n";
  return code;
}

std::string status_text(const nlohmann::json& answer) {
  const auto number = [&](const char* key) { return answer.value(key, int64_t{0}); };
  Table table;
  table.add({"run", answer.value("run", "")});
  table.add({"step", count_text(number("step")) + " of " + count_text(number("last_step"))});
  table.add({"phase",
             answer.value("phase", "") + ", for " + watch::clock_text(answer.value("phase_seconds", 0.0))});
  if (const std::string waiting = answer.value("waiting", ""); !waiting.empty())
    table.add({"waiting", waiting});
  table.add({"ranks", count_text(number("ranks"))});
  const std::string checkpoint = answer.value("checkpoint", "");
  table.add({"checkpoint", checkpoint.empty() ? "none yet" : checkpoint});
  table.add({"training for", watch::clock_text(answer.value("seconds", 0.0))});
  table.add({"rank 0", "process " + std::to_string(number("pid")) + " on " + answer.value("machine", "")});
  return table.text();
}

// Prints the step and the phase of the run, and the rank that rank 0 waits for. `request` is save or stop.
void say_what_it_does(const control::ControlAddress& address, const std::string& request) {
  constexpr auto kSoon = std::chrono::seconds(2);
  try {
    const nlohmann::json run = control::ask(address, "status", kSoon);
    const std::string waiting = run.value("waiting", "");
    std::cerr << printable("fsdp: " + request + " waits: the run is in step " +
                           count_text(run.value("step", int64_t{0}) + 1) + ", " + run.value("phase", "") +
                           ", for " + watch::clock_text(run.value("phase_seconds", 0.0)) +
                           (waiting.empty() ? "" : "; rank 0 waits for " + waiting))
              << "\n";
  } catch (const control::NoAnswer&) {
    return;  // the request itself will find out why
  }
}

std::string value_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string metrics_text(const nlohmann::json& answer) {
  if (!answer["metrics"].is_object()) return "no step is done yet\n";
  Table table;
  for (const auto& [name, value] : answer["metrics"].items()) {
    if (name == "kind" || name == "time") continue;
    if (!value.is_object())
      table.add({name, value_text(value)});
    else
      for (const auto& [part, inner] : value.items()) table.add({name + "." + part, value_text(inner)});
  }
  if (answer["eval"].is_object())
    table.add(
        {"eval loss", value_text(answer["eval"]["loss"]) + " at step " + value_text(answer["eval"]["step"])});
  return table.text();
}

std::string answer_text(const std::string& request, const nlohmann::json& answer) {
  if (request == "status") return status_text(answer);
  if (request == "metrics") return metrics_text(answer);
  const std::string step = std::to_string(answer.value("step", int64_t{0}));
  return (request == "save" ? "saved " : "stopped after step " + step + "; saved ") +
         printable(answer.value("checkpoint", "")) + "\n";
}

int ask_run(const CtlArguments& given) {
  const watch::RunFolder folder{given.run};
  if (!folder.has_run())
    return fail(given.run +
                    ": found no run, expected the folder of a run of `fsdp train`, such as "
                    "runs/example/stage1",
                kUsage);
  if (!fs::exists(folder.control()))
    return fail(given.run + ": no ranks train in this run now. `fsdp train --resume auto` goes on with it",
                kFailed);
  const bool waits_for_step = given.request == "save" || given.request == "stop";
  constexpr double kSoon = 10, kDay = 24 * 3600;
  const double seconds = given.has_timeout->count() > 0 ? given.timeout : waits_for_step ? kDay : kSoon;
  nlohmann::json answer;
  try {
    const control::ControlAddress address = control::read_control_file(folder.control());
    answer =
        control::ask(address, given.request, std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)),
                     [&] { say_what_it_does(address, given.request); });
  } catch (const control::NoAnswer& error) {
    return fail(given.run + ": " + error.what(), kFailed);
  }
  if (!answer.value("ok", false)) return fail(given.run + ": " + answer.value("error", ""), kFailed);
  if (given.json)
    print(Json(answer));
  else
    print(answer_text(given.request, answer));
  return kOk;
}

}  // namespace

void add_ctl(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("ctl", "Ask or steer a run that is going on");
  command->footer(
      "status    the step, the phase and the last checkpoint\n"
      "metrics   the values of the last step\n"
      "save      all ranks save after the step in progress; returns when the checkpoint is complete\n"
      "stop      all ranks save after the step in progress and end, with exit code 0\n"
      "Type it on the machine of rank 0. It needs permission to read RUN/control.json.");
  auto given = std::make_shared<CtlArguments>();
  command->add_option("RUN", given->run, "The run's folder")->required()->type_name("");
  command->add_option("REQUEST", given->request, "status, metrics, save or stop")
      ->required()
      ->check(CLI::IsMember({"status", "metrics", "save", "stop"}))
      ->type_name("");
  given->has_timeout = command
                           ->add_option("--timeout", given->timeout,
                                        "Longest wait for the answer. Default: 10 for status and metrics")
                           ->check(CLI::Range(0.0, 1e6))
                           ->type_name("SECONDS");
  command->add_flag("--json", given->json, "Print the answer as JSON");
  command->callback([given, &action] { action = [given] { return ask_run(*given); }; });
}

}  // namespace fsdp::app
