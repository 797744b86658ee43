// Gather path: backward gathers in a part of the row, whose ranks saved the values after forward.
//
// Note [Reshard groups]
// After forward a unit with a reshard group is not dropped: each rank saves a part of it in the compute
// dtype, so that its group, some consecutive ranks of the row, holds all of it. Backward then gathers inside
// the group: more memory, and no traffic beyond a host, for example. Whether it does depends only on the
// model's actions, never on a rank's data, so ranks agree without asking. If slots are memory that all ranks
// of the row share, a group cannot fill one alone: it uses memory of its own.
#include <ATen/ops/empty_like.h>

#include <utility>

#include "transfer/flat.h"
#include "transfer/gather_path.h"

namespace fsdp::detail {

namespace {

class FromReshardGroup final : public GatherPath {
 public:
  FromReshardGroup(const Comm& group, bool shared_slots, GatherPathPtr whole_row)
      : group_(group), shared_slots_(shared_slots), row_(std::move(whole_row)) {}

  SlotMemory memory(GatherFrom from) const override {
    return from == GatherFrom::reshard_group && shared_slots_ ? SlotMemory::own
                                                              : row_->memory(GatherFrom::row);
  }

  at::Tensor start(const at::Tensor& slot, GatherFrom from, const std::string& label) override {
    from_ = from;
    if (from == GatherFrom::row) return values_ = row_->start(slot, from, label);
    work_ = group_.all_gather(as_reals(slot), as_reals(saved_), label + " in its group");
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

  bool saves_for_backward() const override { return true; }
  void save() override {
    if (!values_.defined()) return;
    const int64_t n = values_.numel() / group_.size();
    const at::Tensor mine = values_.narrow(0, group_.rank() * n, n);
    if (!saved_.defined()) saved_ = at::empty_like(mine);
    saved_.copy_(mine);
  }
  void drop_saved() override { saved_ = at::Tensor(); }
  int64_t saved_bytes() const override {
    return saved_.defined() ? static_cast<int64_t>(saved_.nbytes()) : 0;
  }

 private:
  Comm group_;
  bool shared_slots_;
  GatherPathPtr row_;
  GatherFrom from_ = GatherFrom::row;
  at::Tensor values_;  // [total] while gathered
  at::Tensor saved_;   // [total / ranks of the group] from forward to backward
  Work work_;
};

}  // namespace

GatherPathPtr gather_from_reshard_group(const Comm& group, bool shared_slots, GatherPathPtr whole_row) {
  return std::make_unique<FromReshardGroup>(group, shared_slots, std::move(whole_row));
}

}  // namespace fsdp::detail
