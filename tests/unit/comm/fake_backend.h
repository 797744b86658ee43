// A backend with nobody behind it: what it says of itself is a test's to choose, and its operations are done
// at once.
#pragma once

#include <ATen/ops/zeros.h>

#include "comm/backend.h"

namespace fsdp::detail {

class FakeBackend final : public CommBackend {
 public:
  bool compares = false;
  bool in_order = false;
  AbortCause cause = AbortCause::caller;

  const char* name() const override { return "fake"; }
  bool compares_operations() const override { return compares; }
  bool sums_in_order() const override { return in_order; }

  at::Tensor allocate(MemoryUse /*use*/, int64_t numel, at::ScalarType dtype) override {
    return at::zeros({numel}, at::TensorOptions().dtype(dtype));
  }
  WorkPtr all_gather(const at::Tensor&, const at::Tensor&, OpInfo) override { return done(); }
  WorkPtr reduce_scatter(const at::Tensor&, const at::Tensor&, ReduceOp, double, OpInfo) override {
    return done();
  }
  WorkPtr all_reduce(const at::Tensor&, ReduceOp, OpInfo) override { return done(); }
  WorkPtr broadcast(const at::Tensor&, int, OpInfo) override { return done(); }
  WorkPtr send(const at::Tensor&, int, OpInfo) override { return done(); }
  WorkPtr recv(const at::Tensor&, int, OpInfo) override { return done(); }
  WorkPtr barrier(OpInfo) override { return done(); }
  void abort(AbortCause why, std::string_view /*reason*/) override { cause = why; }
  AbortCause abort_cause() const override { return cause; }

 private:
  class Done final : public PendingWork {
    void wait(std::chrono::milliseconds /*timeout*/, bool /*blocking*/) override {}
  };
  static WorkPtr done() { return std::make_shared<Done>(); }
};

}  // namespace fsdp::detail
