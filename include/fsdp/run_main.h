// A main function that starts the ranks and turns errors into a message and an exit code.
#pragma once

#include <fsdp/world.h>

#include <functional>
#include <string>
#include <vector>

namespace fsdp {

// Runs `body`. Returns main's exit code: 0 if `body` returns; the exit code of the failed rank if it throws a
// RankError (128 + signal if a signal ended that rank); 1 if it throws anything else. The message is on
// stderr, with the number of this rank if a launcher started several. With TORCH_SHOW_CPP_STACKTRACES=1 the
// message of a c10::Error has its C++ backtrace.
int run_main(const std::function<void()>& body);

// The usual main of a distributed program:
//   program             is one rank of its launcher, by init(); the only rank if there is no launcher
//   program --ranks N   starts N CPU ranks on this machine, by run_local(); so does --ranks=N
// Calls `rank` with the World in every rank. Returns main's exit code, as above; 2 if N is not a number of at
// least 1. --ranks may stand anywhere before `--`. All other arguments belong to the program, which reads
// them from argv or with the overload below. `--help` or `-h` as the only argument shows these two lines.
int run_main(int argc, char** argv, const std::function<void(World&)>& rank);

// The same for a program with arguments: `rank` also gets those that are not --ranks, in order and without
// the program's name. `--help` is among them.
int run_main(int argc, char** argv,
             const std::function<void(World&, const std::vector<std::string>& arguments)>& rank);

// Writes the message of a failed rank to the file that the variable TORCHELASTIC_ERROR_FILE names, where
// torchrun and `fsdp run` look for it. `culprit`: the other rank whose failure made this one fail; -1: none.
// run_main() calls it. Without the variable, or if the file cannot be written, it does nothing.
void write_error_file(const std::string& message, int culprit = -1);

}  // namespace fsdp
