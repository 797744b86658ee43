#include "comm/c10d/c10d.h"

#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>

#include "base/clock.h"

namespace fsdp::detail {

namespace {

using C10dWork = c10::intrusive_ptr<::c10d::Work>;

class C10dBackend;

// Runs `after` (a scaling, a cast) once the data has arrived.
class AdaptedWork final : public PendingWork {
 public:
  AdaptedWork(C10dBackend& backend, C10dWork work, OpInfo info, uint64_t sequence,
              std::function<void()> after)
      : backend_(backend),
        work_(std::move(work)),
        info_(std::move(info)),
        sequence_(sequence),
        after_(std::move(after)) {}

  void wait(std::chrono::milliseconds timeout, bool blocking) override;

 private:
  C10dBackend& backend_;
  C10dWork work_;
  OpInfo info_;
  uint64_t sequence_;
  std::function<void()> after_;
  Clock::time_point issued_at_ = Clock::now();
};

class C10dBackend final : public CommBackend {
 public:
  explicit C10dBackend(const GroupInfo& info)
      : info_(info),
        inner_(info.options.c10d(info.store, info.rank, info.size)),
        name_("c10d:" + inner_->getBackendName()) {}

  const char* name() const override { return name_.c_str(); }

  // ATen aligns host memory to 64 bytes only.
  at::Tensor allocate(MemoryUse /*use*/, int64_t numel, at::ScalarType dtype) override {
    constexpr int64_t kAlignment = 256;
    const auto element = static_cast<int64_t>(size_of(to_dtype(dtype)));
    const at::Tensor block =
        at::zeros({numel + kAlignment / element}, at::TensorOptions().dtype(dtype).device(info_.device));
    const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(block.data_ptr()) % kAlignment);
    return block.narrow(0, (kAlignment - past) % kAlignment / element, numel);
  }

  WorkPtr all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) override {
    at::Tensor output = slot;
    at::Tensor input = shard.to(slot.scalar_type());  // a copy if the dtypes differ
    return run(
        info, [&] { return inner_->_allgather_base(output, input); },
        input.is_same(shard) ? std::function<void()>() : giving_back(input));
  }

  // An average is a sum that we scale: not every backend has averages.
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                         OpInfo info) override {
    at::Tensor out = output;
    at::Tensor in = input;
    return run(
        info, [&] { return inner_->_reduce_scatter_base(out, in); }, scaling(output, factor(op) * scale));
  }

  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) override {
    std::vector<at::Tensor> tensors{tensor};
    return run(
        info, [&] { return inner_->allreduce(tensors); }, scaling(tensor, factor(op)));
  }

  WorkPtr broadcast(const at::Tensor& tensor, int root, OpInfo info) override {
    std::vector<at::Tensor> tensors{tensor};
    ::c10d::BroadcastOptions options;
    options.rootRank = root;
    return run(info, [&] { return inner_->broadcast(tensors, options); });
  }

  WorkPtr send(const at::Tensor& tensor, int to, OpInfo info) override {
    std::vector<at::Tensor> tensors{tensor};
    return run(info, [&] { return inner_->send(tensors, to, 0); });
  }

  WorkPtr recv(const at::Tensor& tensor, int from, OpInfo info) override {
    std::vector<at::Tensor> tensors{tensor};
    return run(info, [&] { return inner_->recv(tensors, from, 0); });
  }

  WorkPtr barrier(OpInfo info) override {
    return run(info, [&] { return inner_->barrier(); });
  }

  void abort(AbortCause cause, std::string_view reason) override {
    aborted_ = reason;
    cause_ = cause;
    try {
      inner_->abort();
    } catch (const std::exception&) {
      // Backends without abort: our calls are refused from here on, and peers run into their timeout.
    }
  }

  AbortCause abort_cause() const override { return cause_; }

  [[noreturn]] void fail(const OpInfo& info, uint64_t sequence, Milliseconds elapsed,
                         const std::string& reason) const {
    throw CommError({.fault = aborted_.empty() ? CommFault::backend : CommFault::aborted,
                     .rank = world_rank(info_, info_.rank),
                     .culprit = -1,
                     .op = info.op,
                     .label = info.label,
                     .sequence = sequence,
                     .elapsed = elapsed,
                     .reason = aborted_.empty() ? name_ + ": " + reason : aborted_});
  }

  const std::string& aborted() const { return aborted_; }

 private:
  double factor(ReduceOp op) const { return op == ReduceOp::average ? 1.0 / info_.size : 1.0; }

  static std::function<void()> scaling(const at::Tensor& tensor, double factor) {
    if (factor == 1.0) return {};
    return [tensor, factor] { at::Tensor(tensor).mul_(factor); };
  }

  // Returns memory to the stream that it was allocated
  // on, which may not be the one that waits for the work.
  static std::function<void()> giving_back(at::Tensor memory) {
    if (memory.is_cpu()) return [kept = std::move(memory)] {};
    const c10::impl::VirtualGuardImpl guard(memory.device().type());
    const c10::Stream issued_on = guard.getStream(memory.device());
    return [kept = std::move(memory), guard, issued_on]() mutable {
      const c10::Stream now = guard.getStream(kept.device());
      if (now != issued_on) {
        c10::Event done(now.device_type());
        done.record(now);
        done.block(issued_on);
      }
      kept = at::Tensor();
    };
  }

  template <class Issue>
  WorkPtr run(const OpInfo& info, Issue issue, std::function<void()> after = {}) {
    const uint64_t sequence = sequence_++;
    if (!aborted_.empty()) fail(info, sequence, {}, "");
    try {
      return std::make_shared<AdaptedWork>(*this, issue(), info, sequence, std::move(after));
    } catch (const c10::OutOfMemoryError&) {
      throw;  // an error of this rank's device: the caller reports what holds its memory
    } catch (const std::exception& error) {
      fail(info, sequence, {}, error.what());
    }
  }

  GroupInfo info_;
  c10::intrusive_ptr<::c10d::Backend> inner_;
  std::string name_;
  std::string aborted_;
  AbortCause cause_ = AbortCause::caller;  // of `aborted_`
  uint64_t sequence_ = 0;
};

void AdaptedWork::wait(std::chrono::milliseconds timeout, bool /*blocking*/) {
  try {
    work_->wait(timeout);
    if (after_) after_();
  } catch (const std::exception& error) {
    backend_.fail(info_, sequence_, elapsed_since(issued_at_), error.what());
  }
}

}  // namespace

bool c10d_available() { return true; }

std::unique_ptr<CommBackend> make_c10d(const GroupInfo& info) { return std::make_unique<C10dBackend>(info); }

}  // namespace fsdp::detail
