// A gang of processes whose log lines a test can read, and one of whose ranks hangs.
#pragma once

#include <fsdp/fsdp.h>
#include <fsdp/log.h>
#include <fsdp/waiting.h>
#include <gmock/gmock.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "launch/world_state.h"
#include "support/gloo.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace fsdp::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How the ranks reach each other: on one host, or as if each were a host: by the library's gloo, or by one
// that c10d brings along, which knows no timeouts of ours. Beats go through the store then.
enum class Reach : uint8_t { one_host, hosts, c10d_hosts };

inline CommOptions reach_options(Reach reach, milliseconds timeout) {
  CommOptions options{.timeout = timeout};
  if (reach == Reach::c10d_hosts) {
    options.backend = BackendKind::c10d;
    options.c10d = make_gloo;
  }
  return options;
}

class Gang {
 public:
  Gang(int size, Reach reach, const RankBody& body)
      : ranks_(fork_ranks(size, [this, reach, body](World& world) {
          if (reach != Reach::one_host)
            for (Peer& peer : world.state().peers) peer.host_id += "/" + std::to_string(peer.rank);
          set_log_sink([this, rank = world.rank()](LogLevel, std::string_view line) {
            std::ofstream(log_, std::ios::app) << "[" << rank << "] " << line << std::endl;
          });
          body(world);
          set_log_sink({});
        })) {}

  std::string log() const {
    std::ifstream file(log_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Waits until the log has `words`; fails after `limit`.
  bool says(const std::string& words, seconds limit = seconds(40)) const {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (log().find(words) == std::string::npos) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(milliseconds(20));
    }
    return true;
  }
  // How often the log has `words`.
  int count(const std::string& words) const {
    const std::string text = log();
    int found = 0;
    for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
    return found;
  }
  detail::RankProcesses& ranks() { return *ranks_; }
  // Waits until `rank` has ended; false after `limit`.
  bool ends(int rank, seconds limit) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!ranks_->ended(rank) && std::chrono::steady_clock::now() < until)
      (void)ranks_->wait_any(milliseconds(50));
    return ranks_->ended(rank);
  }

 private:
  TempFolder folder_;
  std::string log_ = folder_ / "log";
  std::unique_ptr<detail::RankProcesses> ranks_;
};

inline void stop_myself() { ::kill(::getpid(), SIGSTOP); }
[[noreturn]] inline void loop_for_ever() {
  for (volatile bool stuck = true; stuck;) {
  }
  std::abort();
}

constexpr const char* kAlarm = "has waited since";

}  // namespace fsdp::testing
