// A TCP port of this machine that stays free for rank 0.
#pragma once

#include "app/launch/fd.h"

namespace fsdp::launch {

enum class Reach { this_machine, all_interfaces };

// Holds a free port, of 127.0.0.1 or of all interfaces: bound, but not listening. Another program gets no
// such port from the kernel, while rank 0 may bind it and listen, with SO_REUSEADDR, as LibTorch's store and
// ours do. Keep it for as long as the ranks run: they may listen again. The constructor throws LaunchError.
class ReservedPort {
 public:
  explicit ReservedPort(Reach reach = Reach::this_machine);
  int number() const { return number_; }

 private:
  Fd socket_;
  int number_ = 0;
};

// Throws LaunchError if another program listens on port `number` of this machine, where rank 0 is to listen.
void require_free_port(int number);

}  // namespace fsdp::launch
