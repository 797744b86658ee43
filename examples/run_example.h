// What the examples' mains share: ranks on this machine by --ranks N, or one rank of a launcher.
#pragma once

#include <c10/util/Exception.h>
#include <fsdp/world.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

namespace examples {

inline int usage(const char* program) {
  std::fprintf(stderr,
               "usage: %s [--ranks N]\n  --ranks N   start N CPU ranks on this machine; without it, this "
               "process is one rank of its launcher\n",
               program);
  return 2;
}

inline int run_example(int argc, char** argv, const std::function<void(fsdp::World&)>& rank) {
  const bool start_ranks = argc == 3 && std::strcmp(argv[1], "--ranks") == 0;
  const int ranks = start_ranks ? std::atoi(argv[2]) : 0;
  if (argc != 1 && ranks < 1) return usage(argv[0]);
  try {
    if (start_ranks) {
      fsdp::run_local(ranks, rank, {.device = c10::Device(c10::kCPU)});
    } else {
      auto world = fsdp::init();
      rank(world);
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace examples
