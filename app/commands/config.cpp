#include "app/commands/config.h"

#include <iostream>

#include "app/commands/config_flags.h"
#include "app/config/example.h"
#include "app/config/explain.h"
#include "app/exit_codes.h"
#include "app/output.h"

namespace fsdp::app {

namespace {

struct ConfigArguments {
  bool example = false, print = false, schema = false, markdown = false;
  CLI::Option* explain = nullptr;
  std::string name;  // a key or a section
};

int print_resolved(const config::Request& request) {
  const config::Resolution resolved = config::resolve(request, find_machine(), config::process_environment());
  if (!resolved.problems.empty()) return print_problems(resolved.problems);
  print(resolved.settings.to_yaml());
  print_notes(resolved.notes);
  return kOk;
}

int print_explained(const ConfigArguments& given) {
  if (given.markdown) {
    print(config::explain_in_markdown());
    return kOk;
  }
  const std::optional<std::string> text = config::explain(given.name);
  if (!text) return print_problems({config::unknown_key(given.name)});
  print(*text);
  return kOk;
}

int run_config(const ConfigArguments& given, const config::Request& request) {
  if (given.example) print(std::string(config::example_config()));
  if (given.schema) print(config::json_schema());
  if (given.explain->count() > 0) return print_explained(given);
  if (given.print) return print_resolved(request);
  return kOk;
}

}  // namespace

void add_config(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("config", "Print, explain and check configurations of `fsdp train`");
  auto given = std::make_shared<ConfigArguments>();
  CLI::Option_group* ways = command->add_option_group("What to print");
  ways->add_flag("--example", given->example, "The built-in example, a commented config file");
  ways->add_flag("--print", given->print,
                 "Every value as resolved from file and flags, and where it came from");
  given->explain = ways->add_option("--explain", given->name, "All keys, those of a section, or one key")
                       ->type_name("[KEY]")
                       ->expected(0, 1);
  ways->add_flag("--schema", given->schema, "A JSON schema of config files, for editors");
  ways->require_option(1);
  command->add_flag("--markdown", given->markdown, "With --explain: as tables in Markdown");
  const auto request = add_config_flags(*command);
  command->callback(
      [given, request, &action] { action = [given, request] { return run_config(*given, *request); }; });
}

}  // namespace fsdp::app
