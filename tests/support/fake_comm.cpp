#include "support/fake_comm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <functional>

#include "comm/state.h"

namespace fsdp::testing {

using at::Tensor;
using detail::OpInfo;
using detail::WorkPtr;

namespace {

std::string text(const Tensor& tensor) {
  return std::to_string(tensor.numel()) + " " + c10::toString(tensor.scalar_type());
}

std::string text(ReduceOp op) { return op == ReduceOp::average ? "average" : "sum"; }

Comm comm_of(const std::shared_ptr<FakeBackend>& backend, int rank, int size) {
  auto state = std::make_shared<detail::CommState>();
  state->info.rank = rank;
  state->info.size = size;
  for (int r = 0; r < size; ++r)
    state->info.peers.push_back({.rank = r, .hostname = "h", .host_id = "h", .pid = 0});
  state->backend = backend;
  return Comm(std::move(state));
}

}  // namespace

class FakeBackend::Pending final : public detail::PendingWork {
 public:
  Pending(FakeBackend& backend, std::string what, std::function<void()> arrive)
      : backend_(backend), what_(std::move(what)), arrive_(std::move(arrive)) {}
  void wait(std::chrono::milliseconds /*timeout*/, bool /*blocking*/) override {
    backend_.calls.push_back("wait " + what_);
    if (arrive_) arrive_();
  }
  bool drop() override {
    backend_.calls.push_back("drop " + what_);
    return true;
  }

 private:
  FakeBackend& backend_;
  std::string what_;
  std::function<void()> arrive_;
};

WorkPtr FakeBackend::issue(const OpInfo& info, const std::string& what, std::function<void()> arrive) {
  const std::string name = std::string(info.op) + " " + info.label;
  calls.push_back(name + ": " + what);
  return std::make_shared<Pending>(*this, name, std::move(arrive));
}

Tensor FakeBackend::sum_over_ranks(const Tensor& mine, ReduceOp op) const {
  Tensor sum = at::zeros_like(mine);
  for (int r = 0; r < size_; ++r) sum += mine + 10 * (r - rank_);
  return op == ReduceOp::average ? sum / size_ : sum;
}

Tensor FakeBackend::allocate(MemoryUse /*use*/, int64_t numel, at::ScalarType dtype) {
  return at::zeros({numel}, at::TensorOptions().dtype(dtype));
}

void FakeBackend::release(const Tensor& slot) { calls.push_back("release: " + text(slot)); }

void FakeBackend::claim(const Tensor& memory, std::string_view label) {
  calls.push_back("claim " + std::string(label) + ": " + text(memory));
}

WorkPtr FakeBackend::all_gather(const Tensor& slot, const Tensor& shard, OpInfo info) {
  return issue(info, text(shard) + " -> " + text(slot), [this, slot, shard] {
    const Tensor mine = shard.clone();  // it may be a part of the slot
    const int64_t n = shard.numel();
    for (int r = 0; r < size_; ++r) slot.narrow(0, r * n, n).copy_(mine + 10 * (r - rank_));
  });
}

WorkPtr FakeBackend::reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op, double scale,
                                    OpInfo info) {
  const std::string scaled = scale == 1.0 ? "" : " * " + std::to_string(scale);
  return issue(info, text(input) + " -> " + text(output) + ", " + text(op) + scaled,
               [this, output, input, op, scale] {
                 const int64_t n = output.numel();
                 output.copy_(sum_over_ranks(input.narrow(0, rank_ * n, n), op) * scale);
               });
}

WorkPtr FakeBackend::all_reduce(const Tensor& tensor, ReduceOp op, OpInfo info) {
  return issue(info, text(tensor) + ", " + text(op),
               [this, tensor, op] { tensor.copy_(sum_over_ranks(tensor, op)); });
}

WorkPtr FakeBackend::broadcast(const Tensor& tensor, int root, OpInfo info) {
  return issue(info, text(tensor) + " of " + std::to_string(root));
}

WorkPtr FakeBackend::send(const Tensor& tensor, int to, OpInfo info) {
  return issue(info, text(tensor) + " to " + std::to_string(to));
}

WorkPtr FakeBackend::recv(const Tensor& tensor, int from, OpInfo info) {
  return issue(info, text(tensor) + " from " + std::to_string(from),
               [this, tensor, from] { tensor.copy_(messages.at(from)); });
}

WorkPtr FakeBackend::barrier(OpInfo info) { return issue(info, "all"); }

FakeComm::FakeComm(int rank, int size)
    : backend(std::make_shared<FakeBackend>(rank, size)), comm(comm_of(backend, rank, size)) {}

}  // namespace fsdp::testing
