// Liveness tells a waiting rank which peers' processes are gone.
#pragma once

namespace fsdp::detail {

// Knows which of the processes it was made for still run.
class Liveness {
 public:
  virtual ~Liveness() = default;
  // True if process `index` is gone. In a group, `index` is the group rank.
  virtual bool dead(int index) = 0;
};

}  // namespace fsdp::detail
