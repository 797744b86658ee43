#include "comm/shared/messages.h"

#include <algorithm>
#include <cstring>

#include "comm/backend.h"

namespace fsdp::detail {

namespace {

// The bytes from `moved` on, of the header or the tensor, as one span of memory.
struct Piece {
  char* data;
  size_t bytes;
};

Piece next_piece(Message& message) {
  constexpr size_t kHead = sizeof(Message::Header);
  if (message.moved < kHead)
    return {reinterpret_cast<char*>(&message.header) + message.moved, kHead - message.moved};
  const size_t at = message.moved - kHead;
  return {static_cast<char*>(message.tensor.data_ptr()) + at, message.tensor.nbytes() - at};
}

size_t total_bytes(const Message& message) { return sizeof(Message::Header) + message.tensor.nbytes(); }

size_t put(Channel& channel, char* ring, const char* data, size_t bytes) {
  const uint64_t written = channel.written.load(std::memory_order_relaxed);
  const size_t room = kChannelBytes - static_cast<size_t>(written - channel.read.load());
  const size_t at = written % kChannelBytes;
  const size_t n = std::min({bytes, room, kChannelBytes - at});
  std::memcpy(ring + at, data, n);
  channel.written.store(written + n);
  return n;
}

size_t take(Channel& channel, const char* ring, char* data, size_t bytes) {
  const uint64_t read = channel.read.load(std::memory_order_relaxed);
  const auto there = static_cast<size_t>(channel.written.load() - read);
  const size_t at = read % kChannelBytes;
  const size_t n = std::min({bytes, there, kChannelBytes - at});
  std::memcpy(data, ring + at, n);
  channel.read.store(read + n);
  return n;
}

}  // namespace

MessagePtr Messages::post(const at::Tensor& tensor, int peer, bool sending, std::string label) {
  auto& counts = sending ? sent_ : received_;
  counts.resize(static_cast<size_t>(gate_.view().size()));
  auto message = std::make_shared<Message>();
  message->tensor = tensor;
  message->peer = peer;
  message->sending = sending;
  message->label = std::move(label);
  message->number = counts[static_cast<size_t>(peer)]++;
  if (sending) {
    message->header = {.elements = static_cast<uint64_t>(tensor.numel()),
                       .dtype = static_cast<uint64_t>(to_dtype(tensor.scalar_type())),
                       .label = {}};
    message->label.copy(message->header.label, kLabelBytes - 1);
  }
  queue_.push_back(message);
  pump();
  return message;
}

void Messages::pump() {
  const auto same_way = [](const Message& a, const Message& b) {
    return a.peer == b.peer && a.sending == b.sending;
  };
  for (size_t i = 0; i < queue_.size(); ++i) {
    Message& message = *queue_[i];
    const bool first =
        std::none_of(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(i),
                     [&](const MessagePtr& other) { return !other->complete && same_way(*other, message); });
    if (first) move(message);
  }
  std::erase_if(queue_, [](const MessagePtr& message) { return message->complete; });
}

void Messages::move(Message& message) {
  const int from = message.sending ? gate_.rank() : message.peer;
  const int to = message.sending ? message.peer : gate_.rank();
  Channel& channel = gate_.view().channel(from, to);
  char* ring = gate_.view().ring(from, to);
  while (message.moved < total_bytes(message)) {
    const bool in_header = message.moved < sizeof(Message::Header);
    const Piece piece = next_piece(message);
    const size_t n = message.sending ? put(channel, ring, piece.data, piece.bytes)
                                     : take(channel, ring, piece.data, piece.bytes);
    if (n == 0) return;
    message.moved += n;
    gate_.ring(message.peer, kMessages);
    const bool header_came = in_header && message.moved == sizeof(Message::Header) && !message.sending;
    if (header_came && !header_fits(message)) return;
  }
  message.complete = true;
}

bool Messages::header_fits(const Message& message) {
  const auto elements = static_cast<uint64_t>(message.tensor.numel());
  const DType expected = to_dtype(message.tensor.scalar_type());
  const auto sent = static_cast<DType>(message.header.dtype);
  if (message.header.elements == elements && sent == expected) return true;
  const auto words = [](const std::string& label, uint64_t n, DType type) {
    return "'" + label + "' with " + std::to_string(n) + " elements of " + to_string(type);
  };
  gate_.report(CommFault::mismatch, message.peer,
               "it sent " + words(message.header.label, message.header.elements, sent) +
                   ", but the receiver expects " + words(message.label, elements, expected));
  return false;
}

}  // namespace fsdp::detail
