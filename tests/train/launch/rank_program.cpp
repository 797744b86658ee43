// A rank for tests of the launcher: it does what its arguments say, in order, then ends with 0.
//
// launch_rank RANK:ACTION[:ARGUMENT] ...      RANK is a number, or * for every rank. The actions:
//   exit:CODE  signal:NUMBER (to itself)  stop (SIGSTOP)  hang  hang-on-term (ignores SIGTERM)  sleep:MS
//   end-on-term:CODE (hangs until SIGTERM)  say:TEXT  complain:TEXT (to stderr)  error-file:TEXT
//   touch:FILE  wait:FILE (until it exists)  pid:FILE  variables:FILE  child:FILE (starts a process that
//   hangs, and writes its pid). The rank's number is appended to FILE, except for wait.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <thread>

namespace {

using Argument = const std::string&;

volatile std::sig_atomic_t terms = 0;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Complete once it exists.
void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".part") << text;
  std::filesystem::rename(path + ".part", path);
}

std::string own(Argument file) { return file + variable("RANK"); }

[[noreturn]] void hang() {
  for (;;) ::pause();
}

void end_on_term(Argument code) {
  std::signal(SIGTERM, [](int) { terms = terms + 1; });
  while (terms == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for a second one, which should not come
  std::cout << "SIGTERM came " << terms << " time(s)" << std::endl;
  std::_Exit(std::stoi(code));
}

void end_by_signal(Argument number) {
  const rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);
  std::signal(std::stoi(number), SIG_DFL);
  ::kill(::getpid(), std::stoi(number));
  hang();
}

void start_child(Argument file) {
  if (const pid_t child = ::fork(); child == 0)
    hang();
  else
    write_file(own(file), std::to_string(child));
}

void write_variables(Argument file) {
  std::string text;
  for (char** entry = environ; *entry != nullptr; ++entry) text += std::string(*entry) + "\n";
  write_file(own(file), text);
}

void hang_on_term(Argument) {
  std::signal(SIGTERM, SIG_IGN);
  hang();
}

void wait_for(Argument file) {
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

const std::map<std::string, std::function<void(Argument)>> kActions{
    {"exit", [](Argument code) { std::exit(std::stoi(code)); }},
    {"signal", end_by_signal},
    {"stop", [](Argument) { ::raise(SIGSTOP); }},
    {"hang", [](Argument) { hang(); }},
    {"hang-on-term", hang_on_term},
    {"sleep", [](Argument ms) { std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(ms))); }},
    {"end-on-term", end_on_term},
    {"say", [](Argument text) { std::cout << text << std::endl; }},
    {"complain", [](Argument text) { std::cerr << text << std::endl; }},
    {"error-file", [](Argument text) { write_file(variable("TORCHELASTIC_ERROR_FILE"), text); }},
    {"touch", [](Argument file) { write_file(own(file), ""); }},
    {"wait", wait_for},
    {"pid", [](Argument file) { write_file(own(file), std::to_string(::getpid())); }},
    {"variables", write_variables},
    {"child", start_child},
};

void act(const std::string& word) {
  const size_t first = word.find(':'), second = word.find(':', first + 1);
  const std::string who = word.substr(0, first);
  if (who != "*" && who != variable("RANK")) return;
  const auto action = kActions.find(word.substr(first + 1, second - first - 1));
  if (action == kActions.end()) {
    std::cerr << "launch_rank: unknown action " << word << "\n";
    std::exit(99);
  }
  action->second(second == std::string::npos ? "" : word.substr(second + 1));
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) act(argv[i]);
  return 0;
}
