#include "launch/failure.h"

#include <c10/util/env.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstring>
#include <string_view>

namespace fsdp::detail {

namespace {

struct Signal {
  int number;
  const char* name;
  const char* how;
  const char* why;
};

constexpr const char* kEnded = "was ended by ";
constexpr const char* kCrashed = "crashed with ";

constexpr std::array kSignals{
    Signal{SIGABRT, "SIGABRT", kEnded,
           "abort() was called: nobody caught an exception, or an assertion failed"},
    Signal{SIGBUS, "SIGBUS", kCrashed, "a mapped file was truncated, or its disk or /dev/shm is full"},
    Signal{SIGFPE, "SIGFPE", kCrashed, "an integer was divided by zero"},
    Signal{SIGHUP, "SIGHUP", kEnded, "its terminal was closed"},
    Signal{SIGILL, "SIGILL", kCrashed, "this CPU does not have an instruction of the program"},
    Signal{SIGINT, "SIGINT", kEnded, "somebody pressed Ctrl-C"},
    Signal{SIGKILL, "SIGKILL", kEnded,
           "somebody killed it, or the kernel did because memory ran out (see dmesg)"},
    Signal{SIGPIPE, "SIGPIPE", kEnded, "it wrote to a pipe or socket that nobody reads any more"},
    Signal{SIGSEGV, "SIGSEGV", kCrashed, "it used memory that is not mapped, or its stack overflowed"},
    Signal{SIGTERM, "SIGTERM", kEnded, "somebody asked it to end, such as a batch system at its time limit"},
    Signal{SIGXCPU, "SIGXCPU", kEnded, "it used more processor time than its limit (ulimit -t)"},
    Signal{SIGXFSZ, "SIGXFSZ", kEnded, "it wrote a file larger than its limit (ulimit -f)"},
};

// The start of a message: "rank 3", or "fsdp: rank 3".
struct RankAtStart {
  int rank = -1;   // -1: there is none
  size_t end = 0;  // of the number, in the text
};

RankAtStart find_rank(const std::string& text) {
  constexpr std::string_view kOurs = "fsdp: ", kRank = "rank ";
  size_t at = text.starts_with(kOurs) ? kOurs.size() : 0;
  if (text.compare(at, kRank.size(), kRank) != 0) return {};
  at += kRank.size();
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), rank);
  return error == std::errc{} ? RankAtStart{rank, static_cast<size_t>(end - text.data())} : RankAtStart{};
}

}  // namespace

std::string message_of(const c10::Error& error) {
  const bool backtrace = c10::utils::check_env("TORCH_SHOW_CPP_STACKTRACES").value_or(false);
  return backtrace ? error.what() : error.what_without_backtrace();
}

int rank_named_first(const std::string& text) { return find_rank(text).rank; }

std::string name_rank(const std::string& text, int rank, int size, const std::string& failed) {
  const std::string of_size = " of " + std::to_string(size);
  const RankAtStart named = find_rank(text);
  const bool about_itself = named.rank == rank && std::strchr(":, ", text.c_str()[named.end]) != nullptr;
  if (!about_itself) {
    const std::string says = named.rank < 0 || named.rank == rank ? ""
                             : failed.empty()                     ? " says"
                                                                  : ", and says";
    return "rank " + std::to_string(rank) + of_size + failed + says + ": " + text;
  }
  if (text.compare(named.end, of_size.size(), of_size) == 0) return text;
  return text.substr(0, named.end) + of_size + text.substr(named.end);
}

std::string describe_signal(int number) {
  const auto known = std::find_if(kSignals.begin(), kSignals.end(),
                                  [&](const Signal& signal) { return signal.number == number; });
  const std::string signal = "signal " + std::to_string(number);
  if (known == kSignals.end()) return kEnded + signal + " (" + ::strsignal(number) + ")";
  return std::string(known->how) + known->name + " (" + signal + "): " + known->why;
}

}  // namespace fsdp::detail
