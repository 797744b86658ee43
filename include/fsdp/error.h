// The errors of the outside world: a peer, the network, the rendezvous. All are catchable and name the
// offender.
//
// A caller's mistake is a c10::Error (TORCH_CHECK) instead. docs/errors.md lists which message means what.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fsdp {

// Base of every error that is not the caller's mistake.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The ranks of a run could not find each other, or do not fit together.
class RendezvousError : public Error {
 public:
  using Error::Error;
};

// What went wrong in a group of ranks.
enum class CommFault : uint8_t {
  peer_died,  // the process of a rank is gone
  peer_left,  // a rank closed its communicator while others still needed it
  timeout,    // a rank did not arrive in time
  mismatch,   // ranks issued different operations
  aborted,    // a rank called Comm::abort
  backend,    // the library underneath (NCCL, c10d) reported an error
};

// A collective that cannot complete. The group it belongs to is finished: every later call throws as well.
class CommError : public Error {
 public:
  struct Details {
    CommFault fault = CommFault::backend;
    int rank = -1;     // the rank that throws
    int culprit = -1;  // the rank that caused it; -1 where unknown
    std::string op;
    std::string label;
    uint64_t sequence =
        0;  // of the operation in its group; joining and allocating count too. Messages: per pair
    std::chrono::milliseconds elapsed{0};
    std::string reason;
  };

  explicit CommError(Details details);

  const Details& details() const { return details_; }

 private:
  Details details_;
};

const char* to_string(CommFault fault);

}  // namespace fsdp
