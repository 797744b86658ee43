// The call a rank is in, in the user's terms, so that errors on other ranks can name it.
#pragma once

#include <fsdp/error.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace fsdp::detail {

// A fault that has ended a group.
struct GroupFault {
  CommFault kind = CommFault::backend;
  int culprit = -1;  // world rank
  std::string reason;
};

// Memory in which ranks of one host read each other's activity: a group on shared memory has one.
class ActivityBoard {
 public:
  ActivityBoard() = default;
  virtual ~ActivityBoard() = default;
  ActivityBoard(const ActivityBoard&) = delete;
  ActivityBoard& operator=(const ActivityBoard&) = delete;

  // The fault of the board's group; none: it works.
  virtual std::optional<GroupFault> fault() const = 0;
  // `meetings` of Note [Activities]. `several_threads`: they say nothing about what a thread waits for.
  virtual void show(const std::string& activity, uint64_t meetings, bool several_threads) = 0;
  // "is in its 5th forward, for 3 s", by rank in the world; empty: unknown.
  virtual std::string activity_of(int world_rank) const = 0;
};

// Note [Activities]
// A rank that waits for another can only say which collective is missing. Users know calls: the 5th forward,
// a backward, save(). So every rank writes down the call it is in, whenever that changes, on the boards of
// all its groups; the rank that reports a fault reads both sides there. An activity completes the sentence
// "rank 1 is ...": "in its 5th forward without gradients", "outside the model, after its 4th backward".
//
// save() and load() meet through the store, World::mean() and a GradScaler in groups of their own. A rank in
// such a meeting needs all ranks there, and one that waits for it in another group will never come.
// `meetings` lets that rank find out at once (Rounds::look_for_meeting); it ends its group, and those who
// meet look for such a fault (new_fault()).
//
// Threads: any. Meetings say something about one thread only. A rank that uses groups on several threads may
// meet on one of them and do its part in another group on the next, so its groups show no meetings and look
// for none: Gate::kNoMeetings. Heartbeats show them: a rank in a long save() is not late.
class Activity {
 public:
  void set(std::string text);
  std::string get() const;
  // "is in its 5th forward, for 3 s"; empty: unknown.
  std::string of_peer(int world_rank) const;

  // A meeting of all ranks begins or ends.
  void begin_meeting(std::string text);
  void end_meeting();
  // A thread is about to use a group. See Note [Activities], "Threads".
  void note_thread();
  // A fault, since this thread began the meeting it is in, of a group that worked then; none otherwise.
  std::optional<GroupFault> new_fault() const;

  // A group of this rank, on any backend, has failed. Only faults after which a rank cannot be waited for
  // count: timeouts, and errors of NCCL or c10d.
  void note_fault(GroupFault fault);
  // How many have counted.
  int faults_noted() const;
  // The latest one, if more than `before` have counted.
  std::optional<GroupFault> fault_noted_after(int before) const;

  // A board shows what is set from now on, until it is removed.
  void add(ActivityBoard& board);
  void remove(ActivityBoard& board);

 private:
  void show() const;
  void note_thread_locked();

  mutable std::mutex mutex_;
  std::string text_, before_meeting_;
  uint64_t meetings_ = 0;  // begun and ended: odd inside one
  std::vector<ActivityBoard*> boards_;
  int faults_noted_ = 0;
  GroupFault last_fault_;                     // noted
  std::atomic<std::thread::id> thread_ = {};  // that used groups first
  bool several_threads_ = false;
  std::thread::id meeting_thread_;                   // of the meeting in progress
  std::vector<const ActivityBoard*> failed_before_;  // it began
};

// "1st", "2nd", "11th".
std::string ordinal(int64_t number);

}  // namespace fsdp::detail
