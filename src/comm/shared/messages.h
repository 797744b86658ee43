// Point-to-point messages: a byte ring for each direction between two ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/shared/gate.h"
#include "kernels/cpu/dtype.h"

namespace fsdp::detail {

// One message being sent or received: a header, then the tensor's bytes.
struct Message {
  struct Header {
    uint64_t elements;
    uint64_t dtype;
    char label[kLabelBytes];
  };

  at::Tensor tensor;
  int peer = 0;
  bool sending = false;
  std::string label;
  uint64_t number = 0;  // number in its direction between these two ranks
  Header header{};
  size_t moved = 0;  // bytes moved so far, of sizeof(Header) + the tensor's
  bool complete = false;
};
using MessagePtr = std::shared_ptr<Message>;

// The messages of one rank. They make progress whenever the rank waits for anything, so sends that cross do
// not block each other.
class Messages {
 public:
  explicit Messages(Gate& gate) : gate_(gate) {}

  MessagePtr post(const at::Tensor& tensor, int peer, bool sending, std::string label);

  // Moves the bytes that can be moved now. Reports a fault if the two sides disagree about a message.
  void pump();
  bool pending() const { return !queue_.empty(); }

 private:
  void move(Message& message);
  bool header_fits(const Message& message);  // reports a fault if it does not

  Gate& gate_;
  std::deque<MessagePtr> queue_;
  std::vector<uint64_t> sent_, received_;
};

}  // namespace fsdp::detail
