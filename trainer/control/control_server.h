// The control socket of a run: rank 0 answers `fsdp ctl` and other programs on its machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "app/launch/fd.h"
#include "trainer/control/control_file.h"
#include "trainer/watch/records.h"
#include "trainer/watch/run_folder.h"

namespace fsdp::control {

struct ControlFacts {
  watch::RunFolder folder;
  int64_t ranks = 1;
  int64_t step = 0;       // number of steps done
  int64_t last_step = 0;  // number of steps the run is to have
  // What the ranks wait for, "" if they do not. Called on the server's thread.
  std::function<std::string()> waiting = {};
};

// Requests that have come since the last step.
struct ControlVotes {
  bool save = false;
  bool stop = false;
};

// Note [The control socket]
// The socket listens on loopback, at a port that the kernel picks. RUN/control.json has the port and a token;
// only the user of the run can read it, and a request without the token is refused. So other users of the
// machine, port scans and browsers get nothing. Requests and answers are JSON objects, one a line:
//   {"token": T, "do": "status" | "metrics" | "save" | "stop"}  ->  {"ok": true, ...} or {"ok": false,
//   "error": E}
// A thread of its own answers, so `status` answers during a long step. `save` and `stop` set a vote, which
// the ranks add up at the end of a step, as they do for signals: so all ranks act after the same step. They
// are answered when the checkpoint is complete. A connection that sends no request within 10 s, or something
// that is none, is closed. If there are too many, those that wait for nothing are closed, the oldest first.
class ControlServer {
 public:
  // Writes control.json and starts the thread, with all signals blocked. Throws IoError.
  explicit ControlServer(ControlFacts facts);
  // Removes control.json. Who still waits is told that the run has failed, unless ended() was called.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // For the thread that trains. `phase`: "data", "step", "evaluation", "checkpoint" or "end".
  void enter(const char* phase);
  void done(const watch::StepRecord& step);
  void done(const watch::EvalRecord& eval);
  ControlVotes take(int64_t step);  // `step`: the one after which the votes count
  void saved(int64_t step, const std::string& checkpoint);
  // The run ends in order, and has saved.
  void ended();

 private:
  using Clock = std::chrono::steady_clock;
  using Json = nlohmann::json;
  enum class Waits : uint8_t { no, save, stop };
  struct Client {
    launch::Fd socket;
    Clock::time_point since;
    std::string unread = {};
    Waits waits = Waits::no;
    int64_t request = 0;  // number of the save that it waits for
  };

  void serve();
  void accept_new();
  void listen_to(Client& client);
  void answer_line(Client& client, const std::string& line);
  Json status();
  Json metrics();
  void answer_waiting(bool leaving);
  void wake() const;

  ControlFacts facts_;
  ControlAddress address_;
  launch::Fd listener_, wake_;
  Clock::time_point began_ = Clock::now();
  std::list<Client> clients_;  // of the server's thread

  std::mutex mutex_;  // guards what follows
  const char* phase_ = "start";
  Clock::time_point phase_since_ = Clock::now();
  watch::StepRecord step_;
  watch::EvalRecord eval_;
  // Saves are numbered in the order in which they were asked for.
  int64_t saves_asked_ = 0, saves_taken_ = 0, saves_done_ = 0;
  int64_t taken_step_ = 0, saved_step_ = 0;
  std::string checkpoint_;
  bool stop_asked_ = false, ended_ = false, leave_ = false;

  std::thread thread_;
};

}  // namespace fsdp::control
