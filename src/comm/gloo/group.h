// A group of ranks connected by gloo: its messages, and the collectives that are on their way.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/gloo/watch.h"

namespace fsdp::detail {

// A collective, as messages in steps: a step begins when the messages of the one before have arrived.
struct Exchange {
  using Step = std::function<void(Exchange&)>;

  GlooOperation operation;
  int tag = 0;
  std::vector<GlooMessage> messages;  // of the step in progress
  std::deque<Step> steps;             // to come
  bool done = false;
};
using ExchangePtr = std::shared_ptr<Exchange>;

// Note [Exchanges]
// gloo's own collectives are not used. They add in an order of their own, do not know bf16, and do not say
// which rank did not answer. Here every collective is made of messages between two ranks, and the sums are
// ours, along Note [The tree of sums]. Messages are posted when the collective is issued, and gloo moves them
// while the program computes. Later steps are taken by a rank that waits, in the order of issue, so that
// every rank takes them in the same order.
//
// Both sides of a message have a tag made of the operation's number and signature. So data of operations that
// differ never meets, and Note [Faults between hosts] finds who issued what.
//
// All ranks exchange alike, whether they are on one host or not. Two levels (shared memory inside a host, one
// message between hosts) would be other steps of the same collectives: `collectives.h` is the place.
class GlooGroup {
 public:
  explicit GlooGroup(const GroupInfo& info);

  const GroupInfo& info() const { return info_; }
  int rank() const { return info_.rank; }
  int size() const { return info_.size; }
  GlooWatch& watch() { return watch_; }
  const GlooWatch& watch() const { return watch_; }

  // `first` posts the messages of the first step.
  WorkPtr issue(OpInfo info, std::string signature, const Exchange::Step& first);
  // For steps. Empty tensors need no message.
  void send(Exchange& exchange, const at::Tensor& data, int to);
  void recv(Exchange& exchange, const at::Tensor& data, int from);

  // A message of the program.
  WorkPtr message(const at::Tensor& tensor, int peer, bool sending, OpInfo info);

 private:
  class CollectiveWork;
  class MessageWork;

  GlooMessage post(const at::Tensor& data, int peer, bool sending, int tag, const GlooOperation& operation);
  void complete_until(const Exchange& last, Clock::time_point deadline);
  void complete(Exchange& exchange, Clock::time_point deadline);

  GroupInfo info_;
  c10::intrusive_ptr<::c10d::Backend> gloo_;  // null in a group of one
  GlooWatch watch_;
  std::deque<ExchangePtr> pending_;
  // Dropped while an exception unwound: gloo may still write to their tensors. The next collective waits for
  // them, since it may use the same memory.
  ExchangePtr dropped_;
  std::vector<GlooMessage> dropped_messages_;
  uint64_t sequence_ = 0;
  uint64_t messages_ = 0;
};

}  // namespace fsdp::detail
