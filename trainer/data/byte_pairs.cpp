#include "trainer/data/byte_pairs.h"

#include <algorithm>
#include <bit>

#include "trainer/data/mix.h"

namespace fsdp::data {

namespace {

constexpr size_t kMostCachedBytes = 32;
constexpr size_t kMostCached = size_t{1} << 16;

}  // namespace

BytePairs::BytePairs(const std::array<int32_t, 256>& byte_tokens, const std::vector<Merge>& merges)
    : byte_tokens_(byte_tokens), rules_(std::bit_ceil(2 * merges.size() + 2)) {
  for (const Merge& merge : merges) {
    const uint64_t pair = pair_of(merge.left, merge.right);
    slot(pair) = {pair, merge.rank, merge.result};
  }
}

// The rule of `pair`, or the free slot where it belongs.
BytePairs::Rule& BytePairs::slot(uint64_t pair) {
  size_t at = mix(pair) & (rules_.size() - 1);
  while (rules_[at].pair != pair && rules_[at].pair != kNoPair) at = (at + 1) & (rules_.size() - 1);
  return rules_[at];
}

void BytePairs::encode(std::string_view piece, std::vector<int32_t>& out) {
  if (piece.size() > kMostCachedBytes) return merge(piece, out);
  auto known = cache_.find(piece);
  if (known == cache_.end()) {
    if (cache_.size() >= kMostCached) cache_.clear();
    std::vector<int32_t> tokens;
    merge(piece, tokens);
    known = cache_.emplace(piece, std::move(tokens)).first;
  }
  out.insert(out.end(), known->second.begin(), known->second.end());
}

void BytePairs::propose(size_t place) {
  const size_t next = parts_[place].next;
  if (next == kEnd) return;
  const uint64_t pair = pair_of(parts_[place].token, parts_[next].token);
  const Rule& rule = slot(pair);
  if (rule.pair != pair) return;
  heap_.push_back({rule.rank, place, pair, rule.result});
  std::push_heap(heap_.begin(), heap_.end());
}

// A part that was merged into the one before it has token -1, so that candidates which name it are out of
// date.
void BytePairs::merge(std::string_view piece, std::vector<int32_t>& out) {
  parts_.clear();
  heap_.clear();
  for (size_t i = 0; i < piece.size(); ++i)
    parts_.push_back({byte_tokens_[static_cast<unsigned char>(piece[i])], i == 0 ? kEnd : i - 1,
                      i + 1 == piece.size() ? kEnd : i + 1});
  for (size_t i = 0; i < parts_.size(); ++i) propose(i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate best = heap_.back();
    heap_.pop_back();
    Part& part = parts_[best.place];
    if (part.token < 0 || part.next == kEnd || pair_of(part.token, parts_[part.next].token) != best.pair)
      continue;
    Part& gone = parts_[part.next];
    part.token = best.result;
    part.next = gone.next;
    gone.token = -1;
    if (part.next != kEnd) parts_[part.next].previous = best.place;
    propose(best.place);
    if (part.previous != kEnd) propose(part.previous);
  }
  for (size_t i = parts_.empty() ? kEnd : 0; i != kEnd; i = parts_[i].next) out.push_back(parts_[i].token);
}

}  // namespace fsdp::data
