// The default group of a World, and sums over it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <fsdp/comm.h>
#include <fsdp/world.h>

#include "comm/state.h"
#include "launch/in_call.h"

namespace fsdp {

namespace {

at::Tensor reduced(const World& world, const at::Tensor& tensor, ReduceOp op, const char* call) {
  TORCH_CHECK(tensor.defined(), "fsdp: World::", call, " of an undefined tensor");
  TORCH_CHECK(op == ReduceOp::sum || tensor.is_floating_point(), "fsdp: World::", call,
              " of a tensor of type ", tensor.scalar_type(),
              "; the mean of integers is no integer: call .to(torch::kFloat64) first");
  TORCH_CHECK(tensor.scalar_type() != at::kBool, "fsdp: World::", call,
              " of a bool tensor, which cannot hold a count: call .to(torch::kInt64) first");
  const detail::InMeeting in_call(world, std::string("World::") + call);
  const at::NoGradGuard no_grad;
  const bool narrow = c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  const at::Tensor sum = tensor.detach()
                             .to(world.device(), narrow ? at::kLong : tensor.scalar_type(),
                                 /*non_blocking=*/false, /*copy=*/true)
                             .contiguous();
  world.comm().all_reduce(sum, op, call).wait();
  return sum.to(tensor.device(), tensor.scalar_type());
}

double reduced(const World& world, double value, ReduceOp op, const char* call) {
  return reduced(world, at::full({}, value, at::kDouble), op, call).item<double>();
}

}  // namespace

Comm World::comm() const {
  const std::lock_guard lock(state_->comm_mutex);
  if (!state_->comm)
    state_->comm = Comm::create(*this, {.timeout = detail::heartbeat_of(*this)->timeout()}).state_;
  return Comm(state_->comm);
}

double World::mean(double value) const { return reduced(*this, value, ReduceOp::average, "mean()"); }
double World::sum(double value) const { return reduced(*this, value, ReduceOp::sum, "sum()"); }
at::Tensor World::mean(const at::Tensor& tensor) const {
  return reduced(*this, tensor, ReduceOp::average, "mean()");
}
at::Tensor World::sum(const at::Tensor& tensor) const {
  return reduced(*this, tensor, ReduceOp::sum, "sum()");
}

}  // namespace fsdp
