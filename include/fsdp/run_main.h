// A main function whose errors are a message and an exit code, not an abort.
#pragma once

#include <fsdp/world.h>

#include <functional>

namespace fsdp {

// Runs `body`. Returns 0, or 1 where an exception leaves it, with its words on stderr: what main returns.
int run_main(const std::function<void()>& body);

// The usual main of a program of ranks:
//   program             is one rank of its launcher, by init(); alone where there is none
//   program --ranks N   starts N CPU ranks on this machine, by run_local()
// Returns what main returns: 0; 1 where `rank` or another rank failed, with the first cause on stderr; 2 for
// other arguments, with the usage. A program with arguments of its own takes them out of argv before.
int run_main(int argc, char** argv, const std::function<void(World&)>& rank);

}  // namespace fsdp
