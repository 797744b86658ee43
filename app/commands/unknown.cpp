#include "app/commands/unknown.h"

#include <algorithm>
#include <vector>

#include "app/config/near.h"
#include "app/output.h"

namespace fsdp::app {

namespace {

using Commands = std::vector<const CLI::App*>;

// Without option groups, which CLI11 keeps as commands without a name.
Commands commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

// " Did you mean 'inspect'?" for a word that is near it or begins like it; else empty.
std::string suggestion(const std::string& word, const Commands& commands) {
  constexpr size_t kAlike = 2;  // letters
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  std::string near = config::nearest(word, names);
  for (const std::string& name : names)
    if (near.empty() && word.size() >= kAlike && name.starts_with(word.substr(0, kAlike))) near = name;
  return near.empty() ? "" : " Did you mean '" + near + "'?";
}

std::string list(const Commands& commands) {
  Table table;
  for (const CLI::App* command : commands)
    table.add({"  " + command->get_name(), command->get_description()});
  return table.text();
}

const CLI::App& command_in_use(const CLI::App& app) {
  const CLI::App* command = &app;
  for (;;) {
    const auto used = command->get_subcommands();
    const auto next =
        std::find_if(used.begin(), used.end(), [](const CLI::App* one) { return !one->get_name().empty(); });
    if (next == used.end()) return *command;
    command = *next;
  }
}

// With those of option groups.
std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  for (const CLI::App* group :
       command.get_subcommands([](const CLI::App* one) { return one->get_name().empty(); }))
    for (const std::string& flag : flags_of(*group)) flags.push_back(flag);
  return flags;
}

std::string full_name(const CLI::App& command) {
  return (command.get_parent() == nullptr ? "" : full_name(*command.get_parent()) + " ") + command.get_name();
}

// "--devices" of "--devices=4".
std::string flag_of(const std::string& word) { return word.substr(0, word.find('=')); }

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

std::string describe_unexpected(const CLI::App& app) {
  const CLI::App& command = command_in_use(app);
  const std::vector<std::string> flags = flags_of(command);
  std::vector<std::string> found;
  for (const std::string& word : app.remaining(true))
    if (word.starts_with("-")) found.push_back(flag_of(word));
  const std::string takes = "`" + full_name(command) + "` has no ";
  if (found.empty()) return takes + "argument '" + printable(app.remaining(true).front()) + "'.\n";
  std::string text;
  for (const std::string& flag : found)
    text += takes + "option " + printable(flag) + config::did_you_mean(flag, flags) + "\n";
  return text;
}

}  // namespace fsdp::app
