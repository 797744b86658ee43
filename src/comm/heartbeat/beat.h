// Beat: what a rank shows the others of itself; the page it writes it on, and the text that other hosts read.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::detail {

// A copy of what one rank shows.
struct Beat {
  uint64_t count = 0;       // grows as long as the rank's process runs
  int64_t step = -1;        // -1: unknown
  uint64_t waits = 0;       // waits for other ranks, begun and ended: odd inside one
  uint64_t meetings = 0;    // Note [Activities]
  int64_t activity_ms = 0;  // how long it has had its activity
  bool left = false;        // it has ended in order, or its last wait failed
  std::string activity;     // Note [Activities]
  std::string collective;   // the last one it issued: "all_gather 'layers.1'"

  bool waits_now() const { return waits % 2 == 1; }
};

// In memory that the ranks of a host share; zero at birth. Written by its rank, read by all. A reader may see
// half of two texts.
struct alignas(64) BeatPage {
  static constexpr size_t kTextBytes = 112;
  struct Text {
    std::atomic<char> bytes[kTextBytes];

    void write(std::string_view first, std::string_view second = {}, std::string_view third = {},
               std::string_view fourth = {});
    std::string read() const;
  };

  std::atomic<uint64_t> count, waits, meetings;
  std::atomic<int64_t> step;            // + 1; 0: unknown
  std::atomic<int64_t> activity_since;  // on the clock all processes of the host share
  std::atomic<uint32_t> left;
  Text activity, collective;

  void note_collective(std::string_view op, std::string_view label);
  Beat read() const;
};

// One line per rank.
std::string beat_line(int rank, const Beat& beat);
// The rank and its beat; nothing if `line` is none.
std::optional<std::pair<int, Beat>> parse_beat_line(const std::string& line);

}  // namespace fsdp::detail
