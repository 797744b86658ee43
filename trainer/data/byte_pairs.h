// Merges the bytes of a piece of text into tokens.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fsdp::data {

// Neighbours `left` and `right` become `result`. The lowest rank goes first, the leftmost of equal ranks.
struct Merge {
  int32_t left = 0, right = 0, rank = 0, result = 0;
};

// Byte pair encoding. A piece of n bytes takes O(n log n); pieces of up to 32 bytes are kept in a bounded
// cache. One thread at a time.
class BytePairs {
 public:
  // A pair that comes twice has its last rank and result.
  BytePairs(const std::array<int32_t, 256>& byte_tokens, const std::vector<Merge>& merges);

  void encode(std::string_view piece, std::vector<int32_t>& out);

 private:
  struct Rule {
    uint64_t pair = kNoPair;
    int32_t rank = 0, result = 0;
  };
  struct Part {
    int32_t token;
    size_t previous, next;  // kEnd: none
  };
  struct Candidate {
    int32_t rank;
    size_t place;
    uint64_t pair;
    int32_t result;
    // For a heap whose front is the next merge.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  static constexpr uint64_t kNoPair = UINT64_MAX;
  static constexpr size_t kEnd = SIZE_MAX;
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  Rule& slot(uint64_t pair);
  void propose(size_t place);
  void merge(std::string_view piece, std::vector<int32_t>& out);

  std::array<int32_t, 256> byte_tokens_;
  std::vector<Rule> rules_;  // open addressing; the size is a power of two
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> cache_;
  std::vector<Part> parts_;  // of the piece being merged
  std::vector<Candidate> heap_;
};

}  // namespace fsdp::data
