// A collective in flight.
#pragma once

#include <chrono>
#include <memory>

namespace fsdp {

namespace detail {
class TimedWork;
}

// An operation in flight. The destructor waits; while an exception unwinds, it calls drop().
//
// Threads: one at a time per group, as for its Comm.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<detail::TimedWork> pending);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work();

  // CPU: returns when the data is there. CUDA: orders the current stream behind it, without blocking. Throws
  // CommError if a peer dies or leaves, ranks disagree, or the group's timeout passes.
  void wait();
  // The same with another timeout. On CUDA it blocks the calling thread until the data is there.
  void wait(std::chrono::milliseconds timeout);
  // For a rank that fails by itself: waits at most 1 s (local, shm). After that the group has failed.
  void drop();

 private:
  std::shared_ptr<detail::TimedWork> pending_;
};

}  // namespace fsdp
