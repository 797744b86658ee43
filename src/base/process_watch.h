// Notices when the process of a peer ends, however it ends.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/liveness.h"

namespace fsdp::detail {

// Holds a pidfd per peer, which also tells a reused pid from the process meant.
class ProcessWatch final : public Liveness {
 public:
  explicit ProcessWatch(const std::vector<int64_t>& pids);
  bool dead(int index) override;

 private:
  struct Watched {
    int64_t pid;
    Fd pidfd;  // invalid where the kernel or a sandbox does not give one: then the pid is asked
    bool dead = false;
  };
  std::vector<Watched> peers_;  // in the order of `pids`
};

}  // namespace fsdp::detail
