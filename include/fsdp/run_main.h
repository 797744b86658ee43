// A main function that turns exceptions into a message and an exit code.
#pragma once

#include <fsdp/world.h>

#include <functional>

namespace fsdp {

// Runs `body`. Returns main's exit code: 0, or 1 with the message on stderr if an exception leaves it.
int run_main(const std::function<void()>& body);

// The usual main of a distributed program:
//   program             is one rank of its launcher, by init(); the only rank if there is no launcher
//   program --ranks N   starts N CPU ranks on this machine, by run_local()
// Calls `rank` with the World in every rank. Returns main's exit code: 0; 1 if a rank failed, with the
// first cause on stderr; 2 for other arguments, with the usage on stderr. A program with arguments of its own
// removes them from argv first.
int run_main(int argc, char** argv, const std::function<void(World&)>& rank);

}  // namespace fsdp
