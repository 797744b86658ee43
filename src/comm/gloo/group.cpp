#include "comm/gloo/group.h"

#include <string_view>
#include <utility>

#include "comm/gloo/connect.h"

namespace fsdp::detail {

namespace {

constexpr int kMessageTag = 1 << 30;  // messages of the program; below are those of collectives
constexpr uint64_t kNumberBits = 10;  // so many collectives may be on their way
constexpr uint64_t kSignatureBits = 20;

uint64_t low_bits(uint64_t value, uint64_t bits) { return value & ((uint64_t{1} << bits) - 1); }

uint64_t signature_bits(std::string_view text) {
  const uint64_t hash = std::hash<std::string_view>{}(text);
  return low_bits(hash ^ hash >> kSignatureBits ^ hash >> 2 * kSignatureBits, kSignatureBits);
}

int tag_of(uint64_t sequence, const std::string& signature) {
  return static_cast<int>(low_bits(sequence, kNumberBits) << kSignatureBits | signature_bits(signature));
}

}  // namespace

class GlooGroup::CollectiveWork final : public PendingWork {
 public:
  CollectiveWork(GlooGroup& group, ExchangePtr exchange) : group_(group), exchange_(std::move(exchange)) {}

  void wait(std::chrono::milliseconds timeout, bool /*blocking*/) override {
    if (!exchange_->done) group_.complete_until(*exchange_, deadline_after(timeout));
  }

  bool drop() override {
    const auto& last = group_.dropped_;
    if (!exchange_->done && (!last || last->operation.sequence < exchange_->operation.sequence))
      group_.dropped_ = exchange_;
    return true;
  }

 private:
  GlooGroup& group_;
  ExchangePtr exchange_;
};

class GlooGroup::MessageWork final : public PendingWork {
 public:
  MessageWork(GlooGroup& group, GlooMessage message, GlooOperation operation)
      : group_(group), message_(std::move(message)), operation_(std::move(operation)) {}

  void wait(std::chrono::milliseconds timeout, bool /*blocking*/) override {
    group_.watch_.wait(message_, operation_, deadline_after(timeout));
  }

  bool drop() override {
    group_.dropped_messages_.push_back(message_);
    return true;
  }

 private:
  GlooGroup& group_;
  GlooMessage message_;
  GlooOperation operation_;
};

GlooGroup::GlooGroup(const GroupInfo& info)
    : info_(info), gloo_(info.size > 1 ? connect_gloo(info) : nullptr), watch_(info) {}

GlooMessage GlooGroup::post(const at::Tensor& data, int peer, bool sending, int tag,
                            const GlooOperation& operation) {
  std::vector<at::Tensor> tensors{data};
  try {
    return {.work = sending ? gloo_->send(tensors, peer, tag) : gloo_->recv(tensors, peer, tag),
            .peer = peer};
  } catch (const std::exception& error) {
    watch_.fail(peer, operation, error.what());
  }
}

void GlooGroup::send(Exchange& exchange, const at::Tensor& data, int to) {
  if (data.numel() > 0) exchange.messages.push_back(post(data, to, true, exchange.tag, exchange.operation));
}

void GlooGroup::recv(Exchange& exchange, const at::Tensor& data, int from) {
  if (data.numel() > 0)
    exchange.messages.push_back(post(data, from, false, exchange.tag, exchange.operation));
}

WorkPtr GlooGroup::issue(OpInfo info, std::string signature, const Exchange::Step& first) {
  auto exchange = std::make_shared<Exchange>();
  exchange->operation = {.info = std::move(info), .sequence = sequence_++, .signature = std::move(signature)};
  exchange->tag = tag_of(exchange->operation.sequence, exchange->operation.signature);
  watch_.throw_if_faulted(exchange->operation);
  if (const ExchangePtr before = std::exchange(dropped_, nullptr))
    complete_until(*before, deadline_after(info_.options.timeout));
  for (const GlooMessage& message : std::exchange(dropped_messages_, {}))
    watch_.wait(message, exchange->operation, deadline_after(info_.options.timeout));
  pending_.push_back(exchange);  // also if `first` fails: gloo may have some of its messages
  first(*exchange);
  return std::make_shared<CollectiveWork>(*this, std::move(exchange));
}

WorkPtr GlooGroup::message(const at::Tensor& tensor, int peer, bool sending, OpInfo info) {
  GlooOperation operation{.info = std::move(info), .sequence = messages_++, .signature = {}};
  watch_.throw_if_faulted(operation);
  const std::string size = std::to_string(tensor.nbytes());
  const int tag = kMessageTag | static_cast<int>(signature_bits(size));
  GlooMessage message = post(tensor, peer, sending, tag, operation);
  return std::make_shared<MessageWork>(*this, std::move(message), std::move(operation));
}

// After a fault the messages that are left stay here, with their tensors.
void GlooGroup::complete_until(const Exchange& last, Clock::time_point deadline) {
  while (!last.done) {
    complete(*pending_.front(), deadline);
    pending_.pop_front();
  }
}

void GlooGroup::complete(Exchange& exchange, Clock::time_point deadline) {
  for (;;) {
    for (const GlooMessage& message : exchange.messages) watch_.wait(message, exchange.operation, deadline);
    exchange.messages.clear();
    if (exchange.steps.empty()) break;
    const Exchange::Step step = std::move(exchange.steps.front());
    exchange.steps.pop_front();
    step(exchange);
  }
  exchange.done = true;
}

}  // namespace fsdp::detail
