// Meeting: ranks of a world exchange texts through its store, from any thread, beside the groups of training.
#pragma once

#include <fsdp/world.h>

#include <chrono>
#include <string>
#include <vector>

namespace fsdp::detail {

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

  World world_;
  std::string doing_, prefix_;
  std::chrono::milliseconds timeout_;
  int round_ = 0;
  std::vector<std::string> given_;  // by rank 0; the next answer of every rank shows that it read them
};

}  // namespace fsdp::detail
