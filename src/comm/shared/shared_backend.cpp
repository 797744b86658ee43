#include "comm/shared/shared_backend.h"

#include <c10/util/Exception.h>

#include <exception>

#include "comm/await.h"
#include "comm/shared/allocations.h"
#include "comm/shared/group.h"
#include "comm/shared/ops.h"

namespace fsdp::detail {

namespace {

constexpr const char* kTicketKey = "control";
constexpr int kMaxRanks = 1024;  // per group; keeps a rank's part of a bank useful

class SharedBackend final : public CommBackend {
 public:
  SharedBackend(const char* name, const GroupInfo& info, std::unique_ptr<SegmentSource> source,
                std::unique_ptr<Liveness> liveness, ControlView view)
      : name_(name), group_(info, std::move(view), std::move(liveness)), memory_(group_, std::move(source)) {}

  ~SharedBackend() override {
    memory_.release_all();
    group_.leave();
  }

  void join() { group_.join(name_); }

  const char* name() const override { return name_; }
  bool compares_operations() const override { return true; }
  bool sums_in_order() const override { return true; }
  bool shares_memory() const override { return true; }

  at::Tensor allocate(MemoryUse use, int64_t numel, at::ScalarType dtype) override {
    return memory_.allocate(use, numel, dtype);
  }
  void release(const at::Tensor& slot) override { memory_.release(slot); }
  void claim(const at::Tensor& memory, std::string_view label) override { memory_.claim(memory, label); }

  WorkPtr all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) override;
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                         OpInfo info) override;
  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) override;
  WorkPtr broadcast(const at::Tensor& tensor, int root, OpInfo info) override;
  WorkPtr send(const at::Tensor& tensor, int to, OpInfo info) override {
    memory_.refuse_slot(tensor, info.op);
    return group_.message(tensor, to, true, std::move(info));
  }
  WorkPtr recv(const at::Tensor& tensor, int from, OpInfo info) override {
    memory_.refuse_slot(tensor, info.op);
    return group_.message(tensor, from, false, std::move(info));
  }
  WorkPtr barrier(OpInfo info) override {
    return group_.issue(make_barrier_op(), 0, at::kByte, 0, std::move(info), {});
  }

  void abort(AbortCause /*cause*/, std::string_view reason) override { group_.abort(reason); }
  void leaving(std::string_view why) override { group_.note_leaving(why); }
  void gave_up(std::string_view why) override { group_.give_up(why); }

 private:
  int rank() const { return group_.info().rank; }
  double factor(ReduceOp op) const { return op == ReduceOp::average ? 1.0 / group_.info().size : 1.0; }

  const char* name_;
  SharedGroup group_;
  Allocations memory_;
};

WorkPtr SharedBackend::all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) {
  const at::Tensor source = shard.scalar_type() == slot.scalar_type() ? shard : shard.to(slot.scalar_type());
  return group_.issue(memory_.gather_op(slot, source), slot.numel(), slot.scalar_type(), 0, std::move(info),
                      {slot, source});
}

WorkPtr SharedBackend::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                      double scale, OpInfo info) {
  memory_.refuse_slot(output, "reduce_scatter's output");
  memory_.refuse_slot(input, "reduce_scatter's input");
  RoundOpPtr round_op = memory_.reduce_op(output, input, scale * factor(op));
  return group_.issue(std::move(round_op), input.numel(), input.scalar_type(), static_cast<int>(op),
                      std::move(info), {output, input});
}

WorkPtr SharedBackend::all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) {
  memory_.refuse_slot(tensor, "all_reduce");
  auto round_op =
      make_all_reduce_op(group_.view(), rank(), bytes_of(tensor), to_dtype(tensor.scalar_type()), factor(op));
  return group_.issue(std::move(round_op), tensor.numel(), tensor.scalar_type(), static_cast<int>(op),
                      std::move(info), {tensor});
}

WorkPtr SharedBackend::broadcast(const at::Tensor& tensor, int root, OpInfo info) {
  memory_.refuse_slot(tensor, "broadcast");
  return group_.issue(make_broadcast_op(group_.view(), rank(), bytes_of(tensor), root), tensor.numel(),
                      tensor.scalar_type(), root, std::move(info), {tensor});
}

// A late rank only finds that the memory is gone; the rank that failed first has the reason.
[[noreturn]] void rethrow_first(const GroupInfo& info, const Error& error) {
  constexpr const char* kFailedKey = "failed";
  std::string first;
  try {
    if (info.store->check({kFailedKey})) {
      const auto bytes = info.store->get(kFailedKey);
      first.assign(bytes.begin(), bytes.end());
    } else {
      publish_key(info, kFailedKey, error.what());
    }
  } catch (const std::exception&) {
    // Without the store there is only this rank's own error.
  }
  if (!first.empty() && first != error.what())
    throw RendezvousError(std::string(error.what()) + "; a group failed first by: " + first);
  throw;
}

}  // namespace

std::unique_ptr<CommBackend> make_shared_backend(const char* name, const GroupInfo& info,
                                                 std::unique_ptr<SegmentSource> source,
                                                 std::unique_ptr<Liveness> liveness) {
  TORCH_CHECK(info.size <= kMaxRanks, "fsdp: a group of ", info.size, " ranks on one host; at most ",
              kMaxRanks, " are supported");
  SegmentSource::Export
      made;  // outlives the report of a failure: a rank that can no longer attach finds the report
  try {
    const size_t bytes = ControlView::bytes(info.size);
    if (info.rank == 0) {
      made = source->create(bytes);
      publish_key(info, kTicketKey, made.ticket);
    } else {
      made.segment = source->attach(await_key(info, kTicketKey, 0), bytes);
    }
    auto backend = std::make_unique<SharedBackend>(name, info, std::move(source), std::move(liveness),
                                                   ControlView(made.segment, info.size));
    backend->join();
    return backend;
  } catch (const Error& error) {
    rethrow_first(info, error);
  }
}

}  // namespace fsdp::detail
