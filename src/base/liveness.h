// Whether the peers of this process are alive: what a waiting rank asks.
#pragma once

namespace fsdp::detail {

// Knows whether the processes it was made for still run.
class Liveness {
 public:
  virtual ~Liveness() = default;
  // Whether process `index` is gone. Of a group: the group rank.
  virtual bool dead(int index) = 0;
};

}  // namespace fsdp::detail
