#include "app/commands/report.h"

#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <fstream>
#include <iostream>
#include <memory>

#include "app/exit_codes.h"
#include "app/output.h"
#include "app/report/report.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace fsdp::app {

namespace {

struct ReportArguments {
  std::string run, out;
  bool open = false;
};

// xdg-open returns at once, or after the browser was closed, which is not waited for.
bool open_in_browser(std::string path) {
  std::array<std::string, 1> program{"xdg-open"};
  std::array<char*, 3> words{program[0].data(), path.data(), nullptr};
  pid_t child = 0;
  return ::posix_spawnp(&child, program[0].c_str(), nullptr, nullptr, words.data(), environ) == 0;
}

std::string without_slashes(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

int write_report(const ReportArguments& given) {
  const std::string folder = without_slashes(given.run);
  report::Run run;
  try {
    run = report::read_run(folder);
  } catch (const report::NothingToReport& error) {
    std::cerr << "fsdp: " << printable(error.what()) << "\n";
    return kUsage;
  }
  const std::string out = given.out.empty() ? folder + "/report.html" : given.out;
  if (std::ifstream there(out); there && there.peek() != std::ifstream::traits_type::eof()) {
    std::string begin(9, '\0');
    there.read(begin.data(), static_cast<std::streamsize>(begin.size()));
    if (begin != "<!doctype" && begin != "<!DOCTYPE") {
      std::cerr << "fsdp: --out " << printable(out) << " exists and is no HTML file; it is left as it is\n";
      return kUsage;
    }
  }
  const std::string html = report::page(run);
  report::write_whole(out, html);
  print(printable(out) + ": " + counted(static_cast<int64_t>(run.metrics.steps.size()), "step") + ", " +
        size_text(static_cast<int64_t>(html.size())) + "\n");
  for (const std::string& note : run.metrics.notes) print("  " + printable(note) + "\n");
  if (given.open && !open_in_browser(out))
    print(std::string("  There is no xdg-open on this machine: open the file in a browser yourself\n"));
  return kOk;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("report", "Write a run's curves, times and memory as one HTML file");
  auto given = std::make_shared<ReportArguments>();
  command->add_option("RUN", given->run, "Folder of a run, finished or not")->required()->type_name("");
  command->add_option("--out", given->out, "File to write; RUN/report.html without it")->type_name("FILE");
  command->add_flag("--open", given->open, "Open it in the browser");
  command->callback([given, &action] { action = [given] { return write_report(*given); }; });
}

}  // namespace fsdp::app
