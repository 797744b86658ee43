// A launcher for tests that signal or kill it.
//
// launch_supervisor RANKS PROGRAM ARGUMENTS...: all ranks are shown; tells what it does, and the report, on
// stderr.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "app/launch/supervisor.h"

int main(int argc, char** argv) {
  try {
    fsdp::launch::Job job{.argv = {argv + 2, argv + argc}, .ranks = std::atoi(argv[1])};
    job.shown.clear();
    for (int rank = 0; rank < job.ranks; ++rank) job.shown.push_back(rank);
    job.patience.repeat = std::chrono::milliseconds(50);
    const fsdp::launch::Outcome outcome = fsdp::launch::run_ranks(job);
    std::fputs(report(outcome).c_str(), stderr);
    return outcome.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "launch_supervisor: %s\n", error.what());
    return 2;
  }
}
