// Starts a program as a child process that dies with this one.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "app/launch/job.h"

namespace fsdp::launch {

// The file that `name` stands for: itself if it has a '/', else the first of that name in the folders of
// `path` (the variable PATH). Throws LaunchError if there is none, or it cannot be executed.
std::string find_program(const std::string& name, const std::string& path);

// A child that could not become the program.
struct StartFailure {
  int rank = 0;
  int code = 0;  // errno
};

struct Start {
  int rank = 0;
  std::string program;  // a path
  const std::vector<std::string>& argv;
  const std::vector<std::string>& environment;  // "NAME=value"
  int output = -1;                              // stdout; -1: that of this process
  int errors = -1;                              // stderr, likewise
  const std::vector<int>& inherited_fds;
  const sigset_t& signal_mask;       // of the program
  std::vector<int> processors = {};  // that it runs on; empty: those of this process
  int failures = -1;                 // a child that fails writes its StartFailure here
};

// Forks and executes. The child leads a session of its own, reads stdin from /dev/null, and has no other open
// file than stdout, stderr and `inherited_fds`. The kernel kills it when the thread that called this ends,
// however it ends. Throws LaunchError if there can be no further process.
pid_t start_process(const Start& start);

// Closes descriptors from `first` on: now, or when the process executes a program. Safe between fork and
// exec.
void close_from(int first, bool on_exec);

}  // namespace fsdp::launch
