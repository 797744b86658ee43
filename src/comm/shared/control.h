// The control block of a group: arrivals, sleeping ranks and faults in shared memory. Plain memory, zero at
// birth.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/shared/segment.h"

namespace fsdp::detail {

inline constexpr int kCells = 256;                   // more than the rounds in flight
inline constexpr int kMaxPending = 64;               // operations a rank may issue ahead of the slowest
inline constexpr int kRecords = 256;                 // operations whose description is kept for comparison
inline constexpr int kBanks = 2;                     // staging buffers per rank
inline constexpr size_t kBankBytes = 1 << 20;        // of one staging buffer
inline constexpr size_t kChannelBytes = 128 * 1024;  // in flight between one sender and one receiver
inline constexpr size_t kLabelBytes = 80;
inline constexpr size_t kReasonBytes = 640;
inline constexpr size_t kActivityBytes = 96;

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// Counts of one round. Both only grow: each use of the cell adds the group's size.
struct alignas(64) Cell {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> done;
};

// An operation that a rank is about to start, for comparison with the others.
struct Record {
  std::atomic<uint64_t> stamp;  // sequence + 1 when the rest is valid
  uint64_t elements;
  int32_t argument;  // root, or the reduce operation
  uint8_t dtype;
  uint32_t allocation;  // 0: private memory
  uint64_t offset;
  char op[24];
  char label[kLabelBytes];
  char activity[kActivityBytes];  // of the rank when it issued this: Note [Activities]
};

// left_owing: left in the middle of an operation.
enum class RankState : uint32_t { absent, joined, left, left_owing };

// The kinds of events that a rank sleeps for; events of other kinds need not wake it.
enum Interest : uint32_t { kArrivals = 1, kCompletions = 2, kMessages = 4, kEverything = 7 };

// Written by its rank (doorbell: by the others), read by all.
struct alignas(64) RankPage {
  std::atomic<uint32_t> doorbell;  // futex
  std::atomic<uint32_t> asleep;    // Interest bits; 0 when awake
  std::atomic<uint32_t> state;     // RankState
  std::atomic<uint64_t> rounds;    // rounds this rank has arrived at
  std::atomic<int64_t>
      seen_waiting;             // when it last looked for what it waits for, on the clock all processes share
  char reason[kReasonBytes];    // of a fault this rank reported
  std::atomic<uint32_t> noted;  // 0, or 1 + the group rank to blame where this rank leaves
  std::atomic<char> why[kReasonBytes];         // it would leave; valid while `noted`
  std::atomic<uint32_t> given_up;              // times it skipped operations: Note [Ranks that give up]
  std::atomic<char> activity[kActivityBytes];  // Note [Activities]; a reader may see half of two
  std::atomic<int64_t> activity_since;         // on the clock all processes share
  std::atomic<uint64_t> meetings;              // save() and load(), begun and ended: odd inside one
  Record records[kRecords];
};

// One direction between two ranks: a byte ring.
struct alignas(64) Channel {
  std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
};

// Note [Control block]
// [Control][RankPage x W][Cell x kCells][Channel x W x W][channel rings][banks: W x kBanks x kBankBytes]
// Pages of channels and banks that are never used cost no memory.
struct alignas(64) Control {
  std::atomic<uint64_t> fault;  // 0, or the first fault: see Fault
};

// Packed into one word, so that one compare-and-swap decides which fault the whole group reports.
struct Fault {
  uint8_t kind = 0;  // CommFault + 1
  uint16_t culprit = 0;
  uint16_t reporter = 0;

  uint64_t pack() const { return uint64_t{kind} | uint64_t{culprit} << 16 | uint64_t{reporter} << 32; }
  static Fault unpack(uint64_t word) {
    return {static_cast<uint8_t>(word), static_cast<uint16_t>(word >> 16), static_cast<uint16_t>(word >> 32)};
  }
};

// The control block of one group, located in a segment.
class ControlView {
 public:
  ControlView(SegmentPtr segment, int size);

  static size_t bytes(int size);

  int size() const { return size_; }
  std::atomic<uint64_t>& fault() const { return control_->fault; }
  RankPage& page(int rank) const { return pages_[rank]; }
  Cell& cell(uint64_t round) const { return cells_[round % kCells]; }
  Channel& channel(int from, int to) const { return channels_[from * size_ + to]; }
  char* ring(int from, int to) const {
    return rings_ + static_cast<size_t>(from * size_ + to) * kChannelBytes;
  }
  char* bank(int rank, int index) const {
    return banks_ + static_cast<size_t>(rank * kBanks + index) * kBankBytes;
  }

 private:
  SegmentPtr segment_;
  int size_;
  Control* control_;
  RankPage* pages_;
  Cell* cells_;
  Channel* channels_;
  char* rings_;
  char* banks_;
};

}  // namespace fsdp::detail
