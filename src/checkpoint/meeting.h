// Meeting: ranks of a world exchange texts through its store, from any thread, beside the groups of training.
#pragma once

#include <fsdp/world.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace fsdp::detail {

// Note [Ranks that hang in a save]
// A save or load may take long, because ranks read and write: its time limit is that of SaveOptions. But a
// rank that is stopped, or that never comes, must end it after the time that ranks wait for each other in
// training. So a rank that waits here also ends if a group of training has timed out since the meeting began,
// if a rank has given no sign of life for that time, or, on the training thread, if it has waited that long
// for a rank that is not in the meeting. It then writes a key that ends the meeting for all others: they may
// not see what it saw.
//
// One exchange, which all ranks begin in the same order. Throws RendezvousError if a rank does not come in
// time, or is known to be dead.
class Meeting {
 public:
  // `doing` completes "while ...", in errors. The constructor numbers meetings: call it on the training
  // thread.
  Meeting(const World& world, std::string doing, std::chrono::milliseconds timeout);

  // Returns rank 0's text, on all ranks.
  std::string from_0(const std::string& mine);
  // Returns all ranks' texts in order, on rank 0; elsewhere nothing.
  std::vector<std::string> to_0(const std::string& mine);
  // Throws, on all ranks, the error of the lowest rank that has one: see error_of(). That ends the meeting.
  void agree(const std::string& my_error);
  // Returns when all ranks have read rank 0's texts: it may leave, and take the store with it. The last call.
  void end() { to_0(""); }

  const World& world() const { return world_; }

 private:
  std::string key(int round, int rank) const;
  std::string await(const std::string& key, int from) const;
  void look_for_hung_ranks() const;
  [[noreturn]] void give_up(const std::string& why) const;

  World world_;
  std::string doing_, prefix_;
  std::chrono::milliseconds timeout_;
  std::thread::id training_thread_ = std::this_thread::get_id();
  int faults_before_;  // that this rank had noted
  int round_ = 0;
  std::vector<std::string> given_;  // by rank 0; the next answer of every rank shows that it read them
};

}  // namespace fsdp::detail
