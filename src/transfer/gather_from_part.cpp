// Gather path: backward gathers in a part of the row, which kept the values after forward.
//
// Note [Parts of a row]
// A unit with a reshard group is not given up after forward: each rank keeps the part of it that its group,
// some consecutive ranks of the row, needs to put it together again, in the compute dtype. Backward then
// gathers inside the group: more memory, and no traffic beyond, say, a host. Whether it does depends only on
// what the model did, never on what a rank holds, so ranks agree without asking. Where slots are memory that
// all ranks of the row share, a group cannot fill one alone: it uses memory of its own.
#include <ATen/ops/empty_like.h>

#include <utility>

#include "transfer/flat.h"
#include "transfer/gather_path.h"

namespace fsdp::detail {

namespace {

class FromPart final : public GatherPath {
 public:
  FromPart(const Comm& part, bool shared_slots, GatherPathPtr whole_row)
      : part_(part), shared_slots_(shared_slots), row_(std::move(whole_row)) {}

  SlotMemory memory(GatherFrom from) const override {
    return from == GatherFrom::part && shared_slots_ ? SlotMemory::own : row_->memory(GatherFrom::row);
  }

  at::Tensor start(const at::Tensor& slot, GatherFrom from, const std::string& label) override {
    from_ = from;
    if (from == GatherFrom::row) return values_ = row_->start(slot, from, label);
    work_ = part_.all_gather(as_reals(slot), as_reals(kept_), label + " in its group");
    return values_ = slot;
  }
  void finish() override {
    if (from_ == GatherFrom::row)
      row_->finish();
    else
      std::exchange(work_, Work()).wait();
  }
  void release() override {
    values_ = at::Tensor();
    if (from_ == GatherFrom::row)
      row_->release();
    else
      finish();
  }
  void drop() override {
    values_ = at::Tensor();
    if (from_ == GatherFrom::row)
      row_->drop();
    else
      work_.drop();
  }

  void gather_master(const at::Tensor& whole, std::optional<int> root, const std::string& label) override {
    row_->gather_master(whole, root, label);
  }

  int64_t wire_bytes() const override { return row_->wire_bytes(); }

  bool can_keep() const override { return true; }
  void keep() override {
    if (!values_.defined()) return;
    const int64_t n = values_.numel() / part_.size();
    const at::Tensor mine = values_.narrow(0, part_.rank() * n, n);
    if (!kept_.defined()) kept_ = at::empty_like(mine);
    kept_.copy_(mine);
  }
  void drop_kept() override { kept_ = at::Tensor(); }
  int64_t kept_bytes() const override { return kept_.defined() ? static_cast<int64_t>(kept_.nbytes()) : 0; }

 private:
  Comm part_;
  bool shared_slots_;
  GatherPathPtr row_;
  GatherFrom from_ = GatherFrom::row;
  at::Tensor values_;  // [total] while gathered
  at::Tensor kept_;    // [total / ranks of the part] from forward to backward
  Work work_;
};

}  // namespace

GatherPathPtr gather_from_part(const Comm& part, bool shared_slots, GatherPathPtr whole_row) {
  return std::make_unique<FromPart>(part, shared_slots, std::move(whole_row));
}

}  // namespace fsdp::detail
