// Finds memory of the toy device that is read, written or given back before others are done with it.
//
// Note [Races of the toy device]
// The toy device carries out everything at once, so no result of it shows that a wait is missing. This shows
// it whatever the times: it follows which work happens before which. Every stream has a vector clock, and so
// has the host. An operation on a stream comes after what the stream has done, after the events it waits for,
// and after what the host knew when it issued the operation; the host comes after what it has synchronised
// with. Two accesses to one byte of which one writes, neither before the other, are a race.
//   - Operators access what their schema says, on the current stream; collectives on streams of their own,
//     which wait for the current one; wait() makes the current stream wait for them.
//   - Memory that is freed may be used again by the stream that allocated it, as caching allocators do. So an
//     allocation and a free are writes on that stream.
//   - Pinned host memory counts as well: for copies, on their stream, and for operators of the CPU, on the
//     host. Kernels that take pointers are not seen: toy_touch() says what they did.
// The threads of a process are one host here; between them is the thread sanitizer's to look.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fsdp::testing {

// Who did what in which order. No tensors: actors are numbers, memory is addresses.
class HappensBefore {
 public:
  using Actor = int64_t;
  static constexpr Actor kHost = -1;
  using Clock = std::map<Actor, uint64_t>;

  // What is done by when `stream` reaches this point.
  Clock record(Actor stream);
  // `actor`, a stream or the host, goes on after `reached`.
  void wait(Actor actor, const Clock& reached);
  void host_waits_for_all();

  struct Bytes {
    uintptr_t begin = 0;
    uintptr_t end = 0;
  };
  void access(Actor actor, Bytes bytes, bool write, const std::string& what);
  // `allocated_on` may use the memory again; what was recorded for `others` is waited for.
  void free(Actor allocated_on, Bytes bytes, const std::vector<Actor>& others = {});
  // The memory is gone, and whoever gets it next has waited.
  void forget(Bytes bytes);

  // One line for every pair of operators.
  const std::vector<std::string>& races() const { return races_; }

 private:
  struct Access {
    Actor actor = kHost;
    uint64_t time = 0;
    std::string what;
  };
  struct Cell {
    uintptr_t end = 0;
    std::vector<Access> writes = {};  // the last one, or none
    std::vector<Access> reads = {};   // since then
  };

  Clock& issue(Actor actor);
  void cut(uintptr_t at);
  void touch(Cell& cell, const Clock& now, const Access& access, bool write);
  void compare(const std::vector<Access>& before, const Clock& now, const Access& access);

  std::map<Actor, Clock> clocks_;
  std::map<uintptr_t, Cell> cells_;  // by their begin, without overlaps
  std::vector<std::string> races_;
};

// While it lives, the toy device's work is followed. One at a time.
class RaceCheck {
 public:
  RaceCheck();
  ~RaceCheck();
  RaceCheck(const RaceCheck&) = delete;
  RaceCheck& operator=(const RaceCheck&) = delete;

  std::vector<std::string> found() const;

 private:
  uint64_t callback_;
};

// The host reads or writes `tensor`, which is on the CPU, past all operators.
void toy_touch(const at::Tensor& tensor, bool write, const char* what = "the host");

// What the toy device tells; without a RaceCheck nothing happens.
namespace races {

HappensBefore::Clock record(const c10::Stream& stream);
void block(const HappensBefore::Clock& reached, const c10::Stream& stream);
void host_waits(const HappensBefore::Clock& reached);
void host_waits(const c10::Stream& stream);
void host_waits_for_all();
// What an operator reads and writes, before it runs and after it; a number it returns, the host waits for.
void inputs(const c10::Stream& stream, const c10::OperatorHandle& op, const torch::jit::Stack& stack);
void outputs(const c10::Stream& stream, const c10::OperatorHandle& op, const torch::jit::Stack& stack);
// `from` and `to` are on the device or in host memory.
void copies(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& to, bool non_blocking);
// On its device or in pinned memory; other memory is not looked at.
void access(const c10::Stream& stream, const at::Tensor& tensor, bool write, const std::string& what);
void allocate(const c10::Stream& stream, const void* memory, size_t bytes);
void free(const c10::Stream& allocated_on, const void* memory, size_t bytes,
          const std::vector<c10::Stream>& others);
bool is_pinned(const void* memory);
// Of an argument or result of an operator.
void each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& fn);

// Nothing is recorded on this thread: it carries out what was recorded before.
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  static bool now();
};

}  // namespace races

// Pinned memory of the toy device.
c10::Allocator* toy_pinned_allocator();

}  // namespace fsdp::testing
