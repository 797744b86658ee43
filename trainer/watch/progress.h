// Shows progress on a terminal or in a log: the live line, notes and waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "trainer/watch/live_line.h"
#include "trainer/watch/terminal.h"

namespace fsdp::watch {

struct ProgressOptions {
  int fd = 2;
  Terminal terminal = {};
  int64_t every_steps = 1;  // without a live line: a line for every so many steps
  std::chrono::milliseconds redraw{100};
  std::chrono::milliseconds patience{2000};  // a wait is shown once it takes longer
};

// Writes to the stream `fd`, which nobody else should write to meanwhile. A thread of its own shows waits.
// Threads: all calls are safe from any thread. A stream that nobody reads is no error: output is dropped.
// Destruction clears the live line, unless keep_line() was called.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A step is done. Redraws the live line, at most once in `redraw`; the last step is always drawn. Without a
  // live line it prints a line for every `every_steps`-th step, the first and the last.
  void step(const ProgressState& state);

  // Prints `text` as lines of their own, above the live line. Control characters become '?'.
  void note(const std::string& text);

  // While it lives, and after `patience`, the stream shows what it is for and how long it has taken. Of
  // several waits the latest is shown. The Progress must outlive it.
  class [[nodiscard]] Wait {
   public:
    Wait(Wait&& other) noexcept : progress_(other.progress_), id_(other.id_) { other.progress_ = nullptr; }
    Wait& operator=(Wait&&) = delete;
    ~Wait() { done(); }
    void done();

   private:
    friend class Progress;
    Wait(Progress* progress, int64_t id) : progress_(progress), id_(id) {}

    Progress* progress_;
    int64_t id_;
  };
  // `what` follows "waiting for": "the checkpoint of step 100". Cheap: a lock, and no system call.
  // `already`: how long the wait has lasted.
  Wait waiting(std::string what, std::chrono::milliseconds already = {});

  // True if there is a live line: on a terminal.
  bool is_live() const { return options_.terminal.live; }

  // Ends the live line: it stays on the screen, and the next one is a new line.
  void keep_line();

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    int64_t id = 0;
    std::string what, since;
    Clock::time_point begun, next;  // begin of the wait, next time to show it
    bool shown = false;
  };

  void done(int64_t id);
  void watch_waits();
  void show(Pending& wait, Clock::time_point now);
  void draw(const std::string& line);
  void clear_line();
  void print(const std::string& line);
  int width() const;

  const ProgressOptions options_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::list<Pending> waits_;
  ProgressState last_;
  bool has_last_ = false;
  Clock::time_point drawn_{};
  bool line_shown_ = false, thread_sleeps_ = false, stop_ = false;
  int64_t next_id_ = 0;
  std::thread thread_;
};

}  // namespace fsdp::watch
