#include <c10/util/Exception.h>
#include <fsdp/run_main.h>

#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>

namespace fsdp {

namespace {

// Nothing `wrong`: somebody asked.
int say_usage(const char* program, const std::string& wrong) {
  if (!wrong.empty()) std::fprintf(stderr, "error: %s\n", wrong.c_str());
  std::fprintf(stderr,
               "usage: %s [--ranks N]\n  --ranks N   start N CPU ranks on this machine; without it, this "
               "process is one rank of its launcher\n",
               program);
  return wrong.empty() ? 0 : 2;
}

// 0: it is none.
int positive_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 ? number : 0;
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
  const std::string first = argv[1];
  if (first == "--help" || first == "-h") return say_usage(argv[0], "");
  if (first != "--ranks") return say_usage(argv[0], "unknown argument '" + first + "'");
  if (argc == 2) return say_usage(argv[0], "--ranks needs a number");
  if (argc > 3) return say_usage(argv[0], "unknown argument '" + std::string(argv[3]) + "'");
  const int ranks = positive_number(argv[2]);
  if (ranks == 0)
    return say_usage(argv[0], "--ranks '" + std::string(argv[2]) + "' is not a number of ranks (1 or more)");
  return run_main([&] { run_local(ranks, rank, {.device = c10::Device(c10::kCPU)}); });
}

}  // namespace fsdp
