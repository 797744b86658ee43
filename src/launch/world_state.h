// The state behind a World handle.
#pragma once

#include <fsdp/world.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/owning_process.h"
#include "launch/activity.h"

namespace fsdp::detail {

// The fault of this rank's first group that failed. A rank that leaves its other groups because of it passes
// it on, so that their ranks see the culprit and not the messenger.
class FirstCause {
 public:
  struct Fault {
    int culprit = -1;    // rank in the world; -1: nothing has failed
    std::string name;    // of the culprit, with host and process
    std::string reason;  // its action or failure
  };

  void note(Fault fault) {
    const std::lock_guard lock(mutex_);
    if (fault_.culprit < 0) fault_ = std::move(fault);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    fault_ = {};
  }
  Fault get() const {
    const std::lock_guard lock(mutex_);
    return fault_;
  }

 private:
  mutable std::mutex mutex_;
  Fault fault_;
};

// A folder that this rank saves into.
struct SavingFolder {
  std::shared_ptr<void> lock;     // against other runs; rank 0 holds it as long as the world exists
  std::string lock_identity;      // of the locked file
  std::shared_future<void> last;  // ready when the latest requested save has ended
};

class Heartbeat;
struct CommState;

struct WorldState {
  WorldState() = default;
  WorldState(const WorldState&) = delete;
  WorldState& operator=(const WorldState&) = delete;
  // A forked child has no thread that serves the store: dropping the store would wait for it.
  ~WorldState() {
    if (!owner.is_this()) (void)store.release();
  }

  OwningProcess owner;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  c10::Device device{c10::kCPU};
  std::vector<Peer> peers;
  std::string source;
  c10::intrusive_ptr<::c10d::Store> store;
  std::shared_ptr<FirstCause> cause = std::make_shared<FirstCause>();
  std::shared_ptr<Activity> activity = std::make_shared<Activity>();
  std::shared_ptr<Heartbeat> heartbeat;  // see heartbeat_of()
  std::mutex heartbeat_mutex;
  std::atomic<int> models{0};  // sharded so far
  std::atomic<bool> warned_of_rows{false};
  std::atomic<int> groups{0};       // made so far; names the next group's keys
  std::shared_ptr<CommState> comm;  // World::comm(), once it was asked for
  std::mutex comm_mutex;
  std::atomic<int> meetings{0};                // likewise, of ranks that save or load
  std::map<std::string, SavingFolder> saving;  // see Note [One save at a time]
  std::mutex saving_mutex;
};

}  // namespace fsdp::detail
