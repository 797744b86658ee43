#include <c10/util/Exception.h>
#include <fsdp/error.h>
#include <fsdp/run_main.h>

#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/failure.h"
#include "launch/identity.h"

namespace fsdp {

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr std::string_view kRanks = "--ranks";
constexpr std::string_view kRanksIs = "--ranks=";

int fail(const std::string& message, int exit_code) {
  std::fputs(("error: " + message + "\n").c_str(), stderr);
  return exit_code;
}

// Prefixes the number of this rank, if a launcher started several, and tells the launcher.
int fail_here(const std::string& message, int culprit = -1) {
  write_error_file(message, culprit);
  std::optional<detail::Identity> me;
  try {
    me = detail::find_identity({});
  } catch (const Error&) {  // the launcher's variables contradict each other, and `message` says so
  }
  return fail(me && me->size > 1 ? detail::name_rank(message, me->rank, me->size) : message, kFailed);
}

struct Arguments {
  std::optional<std::string> ranks;  // value of the last --ranks
  std::vector<std::string> others;   // without the program's name
};

Arguments read_arguments(int argc, char** argv) {
  Arguments read;
  bool options = true;  // until `--`
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") options = false;
    if (options && word == kRanks)
      read.ranks = i + 1 < argc ? argv[++i] : "";
    else if (options && word.starts_with(kRanksIs))
      read.ranks = word.substr(kRanksIs.size());
    else
      read.others.emplace_back(word);
  }
  return read;
}

// 0: `text` is not a number of at least 1.
int positive_number(const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 ? number : 0;
}

int start(const std::optional<std::string>& ranks, const std::function<void(World&)>& rank) {
  if (!ranks) {
    return run_main([&] {
      World world = init();
      rank(world);
    });
  }
  const int count = positive_number(*ranks);
  if (count == 0)
    return fail(
        (ranks->empty() ? "--ranks has no value" : "--ranks '" + *ranks + "' is not a number of ranks") +
            "; expected a whole number of at least 1, for example --ranks 4",
        kUsage);
  return run_main([&] { run_local(count, rank, {.device = c10::Device(c10::kCPU)}); });
}

bool asks_for_help(const Arguments& read) {
  return !read.ranks && read.others.size() == 1 && (read.others[0] == "--help" || read.others[0] == "-h");
}

}  // namespace

int run_main(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const RankError& error) {
    return fail(error.what(), error.exit_code());
  } catch (const CommError& error) {
    return fail_here(error.what(), error.details().culprit);
  } catch (const c10::Error& error) {
    return fail_here(detail::message_of(error));
  } catch (const std::exception& error) {
    return fail_here(error.what());
  } catch (...) {
    return fail_here("an exception of unknown type");
  }
}

int run_main(int argc, char** argv, const std::function<void(World&)>& rank) {
  const Arguments read = read_arguments(argc, argv);
  if (!asks_for_help(read)) return start(read.ranks, rank);
  std::fprintf(stderr,
               "usage: %s [--ranks N]\n  --ranks N   start N CPU ranks on this machine; without it, this "
               "process is one rank of its launcher\n",
               argv[0]);
  return 0;
}

int run_main(int argc, char** argv,
             const std::function<void(World&, const std::vector<std::string>&)>& rank) {
  const Arguments read = read_arguments(argc, argv);
  return start(read.ranks, [&](World& world) { rank(world, read.others); });
}

}  // namespace fsdp
