#include "watch/sync_batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/var_mean.h>

#include "watch/owner.h"
#include "watch/quiet.h"

namespace fsdp::detail {

namespace {

std::vector<int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < x.dim(); ++i)
    if (i != 1) dims.push_back(i);
  return dims;
}

// Reshapes [C] to broadcast with [N, C, ...].
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = x.size(1);
  return values.view(shape);
}

at::Tensor count_of(const at::Tensor& x) {
  return at::full({1}, static_cast<double>(x.numel()) / static_cast<double>(x.size(1)),
                  at::TensorOptions().dtype(at::kDouble).device(x.device()));
}

struct Statistics {
  at::Tensor mean, var;  // [C], fp64
  at::Tensor count;      // []
};

Statistics over_ranks(const at::Tensor& x, Comm& comm) {
  const int64_t channels = x.size(1);
  const auto [var, mean] = at::var_mean(x.to(at::kDouble), all_but_channels(x), /*unbiased=*/false);
  const at::Tensor mine = at::cat({mean, var, count_of(x)});
  at::Tensor all = at::empty({comm.size() * mine.numel()}, mine.options());
  comm.all_gather(all, mine, "batch norm").wait();
  all = all.view({comm.size(), -1});
  const at::Tensor means = all.narrow(1, 0, channels), counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor total = counts.sum();
  const at::Tensor overall = (means * counts).sum(0) / total;
  const at::Tensor spread = all.narrow(1, channels, channels) + (means - overall).square();
  return {overall, (spread * counts).sum(0) / total, total};
}

at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isNone() ? at::Tensor() : value.toTensor();
}

bool forward(torch::jit::Stack& stack, bool cudnn, Comm* comm) {
  if (comm == nullptr) return false;
  const Quiet quiet;
  const auto arguments = torch::jit::last(stack, 8);
  if (!arguments[5].toBool()) return false;
  const at::Tensor x = arguments[0].toTensor();
  const at::Tensor weight = tensor_or_none(arguments[1]), bias = tensor_or_none(arguments[2]);
  at::Tensor running_mean = tensor_or_none(arguments[3]), running_var = tensor_or_none(arguments[4]);
  const double momentum = arguments[6].toDouble(), eps = arguments[7].toDouble();
  const auto [mean, var, count] = over_ranks(x, *comm);
  if (running_mean.defined()) {
    running_mean.mul_(1 - momentum).add_(mean.to(running_mean.scalar_type()), momentum);
    running_var.mul_(1 - momentum)
        .add_((var * (count / (count - 1))).to(running_var.scalar_type()), momentum);
  }
  const auto type = weight.defined() ? weight.scalar_type() : at::kFloat;
  const at::Tensor y = std::get<0>(
      at::native_batch_norm(x, weight, bias, mean.to(type), var.to(type), /*training=*/false, momentum, eps));
  torch::jit::drop(stack, 8);
  const auto kept = type == at::kDouble ? at::kDouble : at::kFloat;  // used by our backward only
  torch::jit::push(stack, y, mean.to(kept), (var + eps).rsqrt().to(kept));
  if (cudnn) torch::jit::push(stack, at::empty({0}, x.options().dtype(at::kByte)));
  return true;
}

struct Backward {
  at::Tensor dy, x, weight, mean, invstd;
};

void push_gradients(torch::jit::Stack& stack, const Backward& in, Comm& comm) {
  const int64_t channels = in.x.size(1);
  const auto dims = all_but_channels(in.x);
  const at::Tensor invstd = by_channel(in.invstd.to(at::kDouble), in.x);
  const at::Tensor normal = (in.x.to(at::kDouble) - by_channel(in.mean.to(at::kDouble), in.x)) * invstd;
  const at::Tensor dy = in.dy.to(at::kDouble);
  const at::Tensor d_bias = dy.sum(dims), d_weight = (dy * normal).sum(dims);
  at::Tensor all = at::cat({d_bias, d_weight, count_of(in.x)});
  comm.all_reduce(all, ReduceOp::sum, "batch norm").wait();
  const at::Tensor count = all.narrow(0, 2 * channels, 1);
  const at::Tensor mean_dy = by_channel(all.narrow(0, 0, channels) / count, in.x);
  const at::Tensor mean_dy_x = by_channel(all.narrow(0, channels, channels) / count, in.x);
  at::Tensor dx = (dy - mean_dy - normal * mean_dy_x) * invstd;
  const auto type = in.weight.defined() ? in.weight.scalar_type() : in.x.scalar_type();
  if (in.weight.defined()) dx = dx * by_channel(in.weight.to(at::kDouble), in.x);
  torch::jit::push(stack, dx.to(in.x.scalar_type()), d_weight.to(type), d_bias.to(type));
}

bool backward(torch::jit::Stack& stack, bool cudnn, Comm* comm) {
  const size_t count = cudnn ? 9 : 10;
  const auto arguments = torch::jit::last(stack, count);
  if (comm == nullptr || (!cudnn && !arguments[7].toBool())) return false;
  TORCH_CHECK(!at::GradMode::is_enabled(),  // this backward would have to be differentiated itself
              "fsdp: sync_batchnorm: a BatchNorm layer in training is part of a backward with create_graph "
              "(a gradient penalty, a double backward), whose second derivative would be that of this rank's "
              "own statistics. Take the penalty with the layer in eval(), replace the layer (GroupNorm), or "
              "leave sync_batchnorm out.");
  const Quiet quiet;
  const Backward in{.dy = arguments[cudnn ? 1 : 0].toTensor(),
                    .x = arguments[cudnn ? 0 : 1].toTensor(),
                    .weight = tensor_or_none(arguments[2]),
                    .mean = arguments[5].toTensor(),
                    .invstd = arguments[6].toTensor()};
  torch::jit::drop(stack, count);
  push_gradients(stack, in, *comm);
  return true;
}

}  // namespace

bool native_batch_norm(torch::jit::Stack& stack, WatchedUnit& unit) {
  return forward(stack, /*cudnn=*/false, unit.batch_norm_ranks());
}
bool cudnn_batch_norm(torch::jit::Stack& stack, WatchedUnit& unit) {
  return forward(stack, /*cudnn=*/true, unit.batch_norm_ranks());
}
bool native_batch_norm_backward(torch::jit::Stack& stack, WatchedUnit& unit) {
  return backward(stack, /*cudnn=*/false, unit.batch_norm_ranks());
}
bool cudnn_batch_norm_backward(torch::jit::Stack& stack, WatchedUnit& unit) {
  return backward(stack, /*cudnn=*/true, unit.batch_norm_ranks());
}

}  // namespace fsdp::detail
