#include <c10/util/Exception.h>
#include <fsdp/run_main.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fsdp {

namespace {

int say_usage(const char* program) {
  std::fprintf(stderr,
               "usage: %s [--ranks N]\n  --ranks N   start N CPU ranks on this machine; without it, this "
               "process is one rank of its launcher\n",
               program);
  return 2;
}

}  // namespace

int run_main(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "error: an exception of unknown type\n");
  }
  return 1;
}

int run_main(int argc, char** argv, const std::function<void(World&)>& rank) {
  if (argc <= 1) {
    return run_main([&] {
      World world = init();
      rank(world);
    });
  }
  const int ranks = argc == 3 && std::strcmp(argv[1], "--ranks") == 0 ? std::atoi(argv[2]) : 0;
  if (ranks < 1) return say_usage(argv[0]);
  return run_main([&] { run_local(ranks, rank, {.device = c10::Device(c10::kCPU)}); });
}

}  // namespace fsdp
