#include "app/commands/unknown.h"

#include <algorithm>
#include <vector>

#include "app/output.h"

namespace fsdp::app {

namespace {

using Commands = std::vector<const CLI::App*>;

// Without option groups, which CLI11 keeps as commands without a name.
Commands commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

// " Did you mean 'inspect'?" for a word that begins like it; else empty.
std::string suggestion(const std::string& word, const Commands& commands) {
  constexpr size_t kAlike = 2;  // letters
  const auto near = std::find_if(commands.begin(), commands.end(), [&](const CLI::App* command) {
    return word.size() >= kAlike && command->get_name().starts_with(word.substr(0, kAlike));
  });
  return near == commands.end() ? "" : " Did you mean '" + (*near)->get_name() + "'?";
}

std::string list(const Commands& commands) {
  Table table;
  for (const CLI::App* command : commands)
    table.add({"  " + command->get_name(), command->get_description()});
  return table.text();
}

}  // namespace

std::string describe_unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* parent = &app;
  std::string name = app.get_name();
  Commands commands = commands_of(app);
  for (int i = 1; i < argc && !commands.empty(); ++i) {
    const std::string word = argv[i];
    const auto command = std::find_if(commands.begin(), commands.end(),
                                      [&](const CLI::App* one) { return one->check_name(word); });
    if (command == commands.end()) {
      if (parent->get_option_no_throw(word) != nullptr) return "";
      return "'" + printable(word) + "' is not a command of `" + name + "`." + suggestion(word, commands) +
             " Its commands are:\n" + list(commands);
    }
    parent = *command;
    name += " " + parent->get_name();
    commands = commands_of(*parent);
  }
  return commands.empty() ? "" : "`" + name + "` needs a command:\n" + list(commands);
}

}  // namespace fsdp::app
