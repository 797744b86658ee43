// The `fsdp` command: arguments in, an exit code out. docs/command.md describes it.
#include <fcntl.h>
#include <fsdp/error.h>
#include <fsdp/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <new>
#include <string>

#include "app/commands/ckpt.h"
#include "app/commands/config.h"
#include "app/commands/ctl.h"
#include "app/commands/data.h"
#include "app/commands/doctor.h"
#include "app/commands/generate.h"
#include "app/commands/report.h"
#include "app/commands/run.h"
#include "app/commands/train.h"
#include "app/commands/unknown.h"
#include "app/exit_codes.h"
#include "app/launch/error_files.h"
#include "app/output.h"
#include "trainer/data/error.h"

namespace {

using namespace fsdp::app;

constexpr const char* kExitCodes =
    "Exit codes: 0 ok, 1 failed or `ckpt diff` found differences, 2 usage, 3 checkpoint, 4 ranks did not "
    "meet,\n"
    "5 a peer was lost, 6 not finite, 7 storage, 70 a defect, 75 saved and asked to end: start it again,\n"
    "128 + n ended by signal n.";

int fail(const std::exception& error, int code) {
  if (!fsdp::launch::leave_message(error.what())) std::cerr << "fsdp: " << printable(error.what()) << "\n";
  return code;
}

int run(const Action& action) {
  try {
    return action();
  } catch (const std::bad_alloc&) {
    return fail(fsdp::CheckpointError("there is not enough memory for this checkpoint"), kCheckpoint);
  } catch (const fsdp::CheckpointError& error) {
    return fail(error, kCheckpoint);
  } catch (const fsdp::data::DataError& error) {
    return fail(error, kUsage);
  } catch (const fsdp::IoError& error) {
    return fail(error, kStorage);
  } catch (const std::exception& error) {
    return fail(error, kDefect);
  }
}

// A stream that the caller has closed would be the first file that is opened, and get what is printed.
void fill_standard_streams() {
  int fd = ::open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDONLY);
  if (fd >= 0) ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_streams();
  CLI::App app("Fully sharded data parallel training: the command.", "fsdp");
  app.set_version_flag("--version", std::string("fsdp.cpp ") + fsdp::version());
  app.require_subcommand(1);
  app.footer(kExitCodes);  // of every command that has no footer of its own
  Action action;
  add_train(app, action, argc, argv);
  add_run(app, action, argc, argv);
  add_config(app, action);
  add_data(app, action);
  add_generate(app, action);
  add_report(app, action);
  add_ctl(app, action);
  add_doctor(app, action, argc, argv);
  add_ckpt(app, action);
  app.footer(std::string(
                 "Begin with `fsdp train --mode smoke`. `fsdp COMMAND --help` shows a command's options.\n") +
             kExitCodes);
  if (const std::string unknown = describe_unknown_command(app, argc, argv); !unknown.empty()) {
    std::cerr << "fsdp: " << unknown << "Run with --help for more information.\n";
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    std::cerr << "fsdp: " << describe_unexpected(app) << "Run with --help for more information.\n";
    return kUsage;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      std::cerr << "fsdp: ";
      fsdp::launch::leave_message(error.what());
    }
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  return run(action);
}
