#include "app/commands/config_flags.h"

#include <iostream>
#include <sstream>

#include "app/exit_codes.h"
#include "app/launch/environment.h"
#include "app/launch/error_files.h"
#include "app/output.h"

namespace fsdp::app {

std::shared_ptr<config::Request> add_config_flags(CLI::App& command) {
  auto request = std::make_shared<config::Request>();
  const auto add = [&](const char* flag, auto& value, const char* type, const char* help) {
    command.add_option(flag, value, help)->type_name(type);
  };
  add("--config", request->config, "FILE",
      "YAML file; without it config.yaml, or the built-in example if there is none");
  add("--stage", request->stage, "NAME", "Stage of the file; without it the first");
  add("--mode", request->mode, "MODE", "production, or smoke: a few steps, and nothing is kept");
  add("--model-config", request->model_config, "NAME", "A model_config_* from the file or built in");
  add("--fsdp-config", request->fsdp_config, "NAME",
      "A preset of distributed_examples, from the file or built in");
  add("--num-nodes", request->num_nodes, "N", "Number of machines; start the command once on each");
  add("--devices", request->devices, "N", "Ranks per machine, or auto");
  add("--precision", request->precision, "P", "32, bf16-mixed, 16-mixed or bf16-true");
  command.add_option("--set", request->sets, "Set any key, as in training.batch_size=4. May be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  return request;
}

config::Machine find_machine() {
  return {.gpus = launch::usable_gpus(launch::current_environment()), .cores = launch::usable_processors()};
}

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::cerr << "fsdp: " << printable(note) << "\n";
}

int print_problems(const std::vector<std::string>& problems) {
  std::string all;
  for (const std::string& problem : problems) all += (all.empty() ? "" : "\n") + problem;
  if (launch::leave_message(all)) return kUsage;
  for (const std::string& problem : problems) {
    std::istringstream lines("fsdp: " + problem);
    for (std::string line; std::getline(lines, line);) std::cerr << printable(line) << "\n";
  }
  if (problems.size() > 1) std::cerr << "fsdp: " << problems.size() << " problems; nothing was started\n";
  return kUsage;
}

}  // namespace fsdp::app
