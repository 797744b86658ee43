#include "comm/shared/control.h"

#include "base/assert.h"

namespace fsdp::detail {

namespace {

struct Offsets {
  size_t pages, cells, channels, rings, banks, end;
};

Offsets offsets(int size) {
  const auto ranks = static_cast<size_t>(size);
  const auto page_up = [](size_t n) { return (n + 4095) / 4096 * 4096; };
  Offsets o{};
  o.pages = sizeof(Control);
  o.cells = o.pages + ranks * sizeof(RankPage);
  o.channels = o.cells + kCells * sizeof(Cell);
  o.rings = page_up(o.channels + ranks * ranks * sizeof(Channel));
  o.banks = o.rings + ranks * ranks * kChannelBytes;
  o.end = o.banks + ranks * kBanks * kBankBytes;
  return o;
}

}  // namespace

size_t ControlView::bytes(int size) { return offsets(size).end; }

// Zero bytes are the valid initial state of every struct here, so nothing is constructed: ranks may attach at
// any time.
ControlView::ControlView(SegmentPtr segment, int size) : segment_(std::move(segment)), size_(size) {
  FSDP_ASSERT(segment_->size() >= bytes(size));
  const Offsets o = offsets(size);
  char* base = segment_->data();
  control_ = reinterpret_cast<Control*>(base);
  pages_ = reinterpret_cast<RankPage*>(base + o.pages);
  cells_ = reinterpret_cast<Cell*>(base + o.cells);
  channels_ = reinterpret_cast<Channel*>(base + o.channels);
  rings_ = base + o.rings;
  banks_ = base + o.banks;
}

}  // namespace fsdp::detail
