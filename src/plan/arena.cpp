#include "plan/arena.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace fsdp::detail {

namespace {

bool meet(const Lifetime& a, const Lifetime& b) { return a.begin < b.end && b.begin < a.end; }

// The free ranges in [0, limit); `taken` by offset.
std::vector<Range> holes(const std::vector<Range>& taken, int64_t limit) {
  std::vector<Range> found;
  int64_t end = 0;
  for (const Range& range : taken) {
    if (range.bytes == 0) continue;
    const int64_t next = std::min(range.offset, limit);
    if (next > end) found.push_back({end, next - end});
    end = std::max(end, range.end());
  }
  if (end < limit) found.push_back({end, limit - end});
  return found;
}

enum class Fit : uint8_t {
  tight,  // the smallest hole that is large enough
  ends,   // the ends of the arena first, then the lowest hole
};

std::optional<int64_t> choose(const std::vector<Range>& free, int64_t bytes, int64_t limit, Fit fit) {
  const auto fits = [bytes](const Range& hole) { return hole.bytes >= bytes; };
  if (fit == Fit::tight) {
    const Range* best = nullptr;
    for (const Range& hole : free)
      if (fits(hole) && (best == nullptr || hole.bytes < best->bytes)) best = &hole;
    return best == nullptr ? std::nullopt : std::optional(best->offset);
  }
  const auto low = std::find_if(free.begin(), free.end(), fits);
  if (low == free.end()) return std::nullopt;
  const bool high = low->offset > 0 && free.back().end() == limit && fits(free.back());
  return high ? limit - bytes : low->offset;
}

// Places lifetimes one after the other, below `limit` if possible.
class Packer {
 public:
  Packer(const std::vector<Lifetime>& lifetimes, int64_t limit, Fit fit)
      : lifetimes_(lifetimes), limit_(limit), fit_(fit) {
    packing_.offsets.resize(lifetimes.size());
  }

  Packing run(const std::vector<size_t>& order) {
    for (const bool fixed : {true, false})
      for (const size_t i : order)
        if (lifetimes_[i].bytes > 0 && lifetimes_[i].begin < lifetimes_[i].end &&
            (lifetimes_[i].fixed >= 0) == fixed)
          place(i);
    return std::move(packing_);
  }

 private:
  void place(size_t i) {
    const Lifetime& life = lifetimes_[i];
    std::vector<Range> taken;
    int64_t above = 0;
    for (const size_t other : placed_) {
      if (!meet(life, lifetimes_[other])) continue;
      taken.push_back({packing_.offsets[other], lifetimes_[other].bytes});
      above = std::max(above, taken.back().end());
    }
    const int64_t offset =
        life.fixed >= 0 ? life.fixed : choose(holes(taken, limit_), life.bytes, limit_, fit_).value_or(above);
    packing_.offsets[i] = offset;
    packing_.bytes = std::max(packing_.bytes, offset + life.bytes);
    const auto behind = [&](int64_t value, size_t other) { return value < packing_.offsets[other]; };
    placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), offset, behind), i);
  }

  const std::vector<Lifetime>& lifetimes_;
  const int64_t limit_;
  const Fit fit_;
  std::vector<size_t> placed_;  // by offset
  Packing packing_;
};

template <class Key>
std::vector<size_t> order_by(const std::vector<Lifetime>& lifetimes, Key key) {
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return key(lifetimes[a]) < key(lifetimes[b]); });
  return order;
}

}  // namespace

// Note [Packing]
// Finding the smallest arena is NP-hard, but the lower bound is known, and plans are regular: if at most two
// units are alive, placing them at alternate ends reaches the bound, and so does a stack for units that all
// stay gathered. So lifetimes are placed in a simple order. Those that ended up above the bound go first in
// the next try; if that does not help, another order is tried. The best of all tries is returned, and the
// first that reaches the bound ends the search.
Packing pack(const std::vector<Lifetime>& lifetimes) {
  constexpr int kTries = 8;
  const int64_t bound = peak_bytes(lifetimes);
  Packing best{.offsets = {}, .bytes = std::numeric_limits<int64_t>::max()};
  const auto search = [&](std::vector<size_t> order, Fit fit) {
    for (int tries = 0; tries < kTries && best.bytes > bound; ++tries) {
      Packing packing = Packer(lifetimes, bound, fit).run(order);
      std::stable_partition(order.begin(), order.end(),
                            [&](size_t i) { return packing.offsets[i] + lifetimes[i].bytes > bound; });
      if (packing.bytes < best.bytes) best = std::move(packing);
    }
  };
  search(order_by(lifetimes, [](const Lifetime& life) { return -life.bytes; }), Fit::tight);
  search(order_by(lifetimes, [](const Lifetime& life) { return life.begin; }), Fit::ends);
  search(order_by(lifetimes, [](const Lifetime& life) { return life.begin - life.end; }), Fit::ends);
  return best;
}

int64_t peak_bytes(const std::vector<Lifetime>& lifetimes) {
  std::map<int32_t, int64_t> change;
  for (const Lifetime& life : lifetimes) {
    if (life.begin >= life.end) continue;
    change[life.begin] += life.bytes;
    change[life.end] -= life.bytes;
  }
  int64_t alive = 0;
  int64_t peak = 0;
  for (const auto& [run, bytes] : change) peak = std::max(peak, alive += bytes);
  return peak;
}

std::optional<int64_t> find_hole(std::vector<Range> taken, int64_t bytes, int64_t arena_bytes) {
  std::sort(taken.begin(), taken.end(), [](const Range& a, const Range& b) { return a.offset < b.offset; });
  if (bytes == 0) return 0;
  for (const Range& hole : holes(taken, arena_bytes))
    if (hole.bytes >= bytes) return hole.offset;
  return std::nullopt;
}

}  // namespace fsdp::detail
