#include "trainer/watch/event_file.h"

#include <fsdp/error.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>

#include "trainer/watch/crc32c.h"
#include "trainer/watch/metrics_writer.h"

namespace fsdp::watch {

namespace {

// A message of protobuf's wire format. Numbers of fields are those of event.proto, summary.proto and
// tensor.proto.
class Message {
 public:
  void whole(int field, int64_t value) {
    key(field, 0);
    varint(static_cast<uint64_t>(value));
  }
  void float64(int field, double value) {
    key(field, 1);
    little_endian(std::bit_cast<uint64_t>(value));
  }
  void float32(int field, double value) {
    key(field, 5);
    little_endian(std::bit_cast<uint32_t>(static_cast<float>(value)));
  }
  void bytes(int field, const std::string& value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
  }
  void message(int field, const Message& value) { bytes(field, value.bytes_); }

  template <typename T>
  void little_endian(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int wire_type) { varint(static_cast<uint64_t>(field << 3 | wire_type)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7f) | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

Message event(double time, int64_t step) {
  Message event;
  event.float64(1, time == 0 ? seconds_since_1970() : time);
  event.whole(2, step);
  return event;
}

// A record: length, its checksum, the message, its checksum.
std::string record(const Message& event) {
  Message length, frame;
  length.little_endian(uint64_t{event.bytes().size()});
  frame.little_endian(masked_crc32c(event.bytes()));
  Message length_sum;
  length_sum.little_endian(masked_crc32c(length.bytes()));
  return length.bytes() + length_sum.bytes() + event.bytes() + frame.bytes();
}

std::string new_path(const std::string& folder) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"localhost"};
  return folder + "/events.out.tfevents." + std::to_string(static_cast<int64_t>(seconds_since_1970())) + "." +
         host.data();
}

// The first free name of path, path.1, path.2, ...: a run may start twice in a second.
AppendFile make_file(const std::string& path) {
  for (int more = 0;; ++more) try {
      return AppendFile(more == 0 ? path : path + "." + std::to_string(more), AppendFile::Existing::refuse);
    } catch (const IoError& error) {
      if (error.code() != EEXIST) throw;
    }
}

}  // namespace

EventFile::EventFile(const std::string& folder, std::optional<int64_t> resumed)
    : file_(make_file(new_path(folder))) {
  Message version = event(0, 0);
  version.bytes(3, "brain.Event:2");
  // TensorBoard takes the first start of a run as its begin, and later ones as restarts.
  Message session, start = event(0, resumed.value_or(-1) + 1);
  session.whole(1, 1);  // SessionLog.START
  start.message(7, session);
  file_.append(record(version) + record(start));
}

void EventFile::scalars(int64_t step, std::span<const Scalar> values, double time) {
  Message summary;
  for (const Scalar& one : values) {
    Message value;
    value.bytes(1, one.tag);
    value.float32(2, one.value);
    summary.message(1, value);
  }
  Message all = event(time, step);
  all.message(5, summary);
  file_.append(record(all));
}

void EventFile::text(int64_t step, const std::string& tag, const std::string& markdown, double time) {
  Message plugin, metadata, tensor, value, summary;
  plugin.bytes(1, "text");
  metadata.message(1, plugin);
  tensor.whole(1, 7);            // DT_STRING
  tensor.message(2, Message());  // a scalar
  tensor.bytes(8, markdown);
  value.bytes(1, tag);
  value.message(8, tensor);
  value.message(9, metadata);
  summary.message(1, value);
  Message all = event(time, step);
  all.message(5, summary);
  file_.append(record(all));
}

}  // namespace fsdp::watch
