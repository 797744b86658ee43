// A group with nobody behind it: a test reads which operations were issued, and knows what other ranks hold.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend.h"

namespace fsdp::testing {

// Rank r holds what this rank holds, plus 10 * (r - this rank). Data is there when it is waited for, not
// before.
class FakeBackend final : public detail::CommBackend {
 public:
  explicit FakeBackend(int rank = 0, int size = 2) : rank_(rank), size_(size) {}

  // What it says of itself.
  bool compares = false;
  bool in_order = false;
  detail::AbortCause cause = detail::AbortCause::caller;
  // What recv() brings from a rank.
  std::map<int, at::Tensor> messages;
  // One line per call: "all_gather unit: 3 Float -> 9 BFloat16", "wait all_gather unit", "release: 9 Float".
  std::vector<std::string> calls;

  const char* name() const override { return "fake"; }
  bool compares_operations() const override { return compares; }
  bool sums_in_order() const override { return in_order; }
  at::Tensor allocate(MemoryUse use, int64_t numel, at::ScalarType dtype) override;
  void release(const at::Tensor& slot) override;
  void claim(const at::Tensor& memory, std::string_view label) override;

  detail::WorkPtr all_gather(const at::Tensor& slot, const at::Tensor& shard, detail::OpInfo info) override;
  detail::WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                                 detail::OpInfo info) override;
  detail::WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, detail::OpInfo info) override;
  detail::WorkPtr broadcast(const at::Tensor& tensor, int root, detail::OpInfo info) override;
  detail::WorkPtr send(const at::Tensor& tensor, int to, detail::OpInfo info) override;
  detail::WorkPtr recv(const at::Tensor& tensor, int from, detail::OpInfo info) override;
  detail::WorkPtr barrier(detail::OpInfo info) override;
  void abort(detail::AbortCause why, std::string_view /*reason*/) override { cause = why; }
  detail::AbortCause abort_cause() const override { return cause; }

 private:
  class Pending;
  detail::WorkPtr issue(const detail::OpInfo& info, const std::string& what,
                        std::function<void()> arrive = {});
  at::Tensor sum_over_ranks(const at::Tensor& mine, ReduceOp op) const;

  int rank_, size_;
};

struct FakeComm {
  FakeComm(int rank, int size);
  // The calls since it was last asked.
  std::vector<std::string> calls() { return std::exchange(backend->calls, {}); }

  std::shared_ptr<FakeBackend> backend;
  Comm comm;
};

}  // namespace fsdp::testing
