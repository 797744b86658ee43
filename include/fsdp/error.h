// Errors that are not the caller's mistake: a peer, the network, the rendezvous, a disk, a damaged
// checkpoint.
//
// They name the rank at fault if it is known. A caller's mistake is a c10::Error (TORCH_CHECK) instead.
// docs/errors.md explains each error.
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

// Ranks could not form a world or a group: one is missing, died, or does not fit the others.
class RendezvousError : public Error {
 public:
  using Error::Error;
};

// A rank of run_local() failed. what() has its message.
class RankError : public Error {
 public:
  RankError(const std::string& message, int rank, int exit_code, int signal)
      : Error(message), rank_(rank), exit_code_(exit_code), signal_(signal) {}

  int rank() const { return rank_; }
  int exit_code() const { return exit_code_; }  // 128 + signal if a signal ended it
  int signal() const { return signal_; }        // 0: none

 private:
  int rank_, exit_code_, signal_;
};

// The kinds of faults that end a group.
enum class CommFault : uint8_t {
  peer_died,  // the process of a rank is gone
  peer_left,  // a rank closed its communicator while others still needed it
  timeout,    // a rank did not arrive in time
  mismatch,   // ranks issued different operations
  aborted,    // a rank called Comm::abort
  backend,    // NCCL or the c10d backend reported an error
};

// A collective cannot complete. Its group is finished: every later call on it throws CommError as well.
class CommError : public Error {
 public:
  struct Details {
    CommFault fault = CommFault::backend;
    int rank = -1;     // the rank that throws
    int culprit = -1;  // the rank that caused it; -1 if unknown
    std::string op;
    std::string label;
    // Number of the operation in its group, joining and allocating included. Messages: per pair of ranks.
    uint64_t sequence = 0;
    std::chrono::milliseconds elapsed{0};  // since the operation was issued
    std::string reason;
    // The call of the sharded model in which it happened, such as "in its 5th forward"; empty: none.
    std::string activity = {};
  };

  explicit CommError(Details details);

  const Details& details() const { return details_; }

 private:
  Details details_;
};

// A file or folder cannot be read or written: the disk is full, the folder read-only or gone.
class IoError : public Error {
 public:
  // `doing`: "write", ...; `code`: errno, 0 if there is none; `more`: details, or advice.
  IoError(std::string doing, std::string path, int code, std::string more = "");

  const std::string& doing() const { return doing_; }
  const std::string& path() const { return path_; }
  const std::string& more() const { return more_; }
  int code() const { return code_; }

 private:
  std::string doing_, path_, more_;
  int code_;
};

// A checkpoint is damaged, incomplete, in a format that is not ours, or does not fit the model.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

// "peer_died", ...: a string literal.
const char* to_string(CommFault fault);

}  // namespace fsdp
