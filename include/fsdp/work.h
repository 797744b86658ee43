// A collective in flight.
#pragma once

#include <chrono>
#include <memory>

namespace fsdp {

namespace detail {
class TimedWork;
}

// What Comm's operations return. Dropping it waits; while an exception unwinds, as drop() does.
//
// Threads: one at a time per group, as for its Comm.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<detail::TimedWork> pending);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work();

  // CPU: returns when the data is there. CUDA: orders what follows on the current stream, without blocking.
  // Throws CommError when a peer dies or leaves, ranks disagree, or the group's timeout passes.
  void wait();
  // The same with another timeout; on CUDA the calling thread waits for the data.
  void wait(std::chrono::milliseconds timeout);
  // For a rank that fails by itself: waits a second at most (local, shm). Then the group's next call throws.
  void drop();

 private:
  std::shared_ptr<detail::TimedWork> pending_;
};

}  // namespace fsdp
