// Notices when the process of a peer ends, for whatever reason.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/liveness.h"

namespace fsdp::detail {

// Holds a pidfd per peer, which also tells the peer from a later process with the same pid.
class ProcessWatch final : public Liveness {
 public:
  explicit ProcessWatch(const std::vector<int64_t>& pids);
  bool dead(int index) override;

 private:
  struct Watched {
    int64_t pid;
    Fd pidfd;  // invalid if the kernel or a sandbox gives none: then the pid is checked
    bool dead = false;
  };
  std::vector<Watched> peers_;  // in the order of `pids`
};

}  // namespace fsdp::detail
