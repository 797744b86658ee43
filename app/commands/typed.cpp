#include "app/commands/typed.h"

namespace fsdp::app {

std::string typed_command(int argc, char** argv) {
  std::string text = "fsdp";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain =
        !word.empty() && word.find_first_of(" \t\n\"'$&|;<>()*?[]{}~#!\\`") == std::string::npos;
    text += " " + (plain ? word : "'" + word + "'");
  }
  return text;
}

}  // namespace fsdp::app
