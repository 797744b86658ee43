#include "fuzz/net.h"

#include <fsdp/recompute.h>

#include <algorithm>
#include <stdexcept>

#include "support/learners.h"

namespace fsdp::fuzz {

namespace {

// Passes its input on, and throws when gradients come back.
struct Breaks : torch::autograd::Function<Breaks> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("a backward of the user's that throws");
  }
};

}  // namespace

BlockImpl::BlockImpl(int64_t width, bool with_norm) {
  if (with_norm) norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  up = register_module("up", torch::nn::Linear(width, 2 * width + 1));
  down =
      register_module("down", torch::nn::Linear(torch::nn::LinearOptions(2 * width + 1, width).bias(false)));
  gate = register_parameter("gate", torch::randn({width}) * 0.1);
  scale = register_parameter("scale", torch::full({}, 0.9));
}

at::Tensor BlockImpl::forward(at::Tensor x, bool with_gate) {
  const at::Tensor h = down(torch::gelu(up(norm.is_empty() ? x : norm(x))));
  x = x + h * scale;
  return with_gate ? x * (gate + 1) : x;
}

HeadImpl::HeadImpl(const at::Tensor& weight_, int64_t width) {
  weight = register_parameter("weight", weight_);
  bias = register_parameter("bias", torch::zeros({width}));
}

ExtraImpl::ExtraImpl(const Net& net) {
  if (net.complex)
    phase = register_parameter("phase", torch::randn({net.width}, torch::kComplexDouble) * 0.3);
  if (net.integer)
    count = register_parameter("count", torch::arange(1000, 1000 + 3 * net.width, torch::kLong),
                               /*requires_grad=*/false);
}

at::Tensor ExtraImpl::forward(at::Tensor x) {
  const auto type = x.scalar_type();
  if (phase.defined()) x = x * torch::real(phase * phase.conj()).to(type) + torch::imag(phase).to(type);
  if (count.defined()) x = x * (count.sum().to(type) / 20000);
  return x;
}

ModelImpl::ModelImpl(const Net& net) : twice_(net.twice) {
  const int64_t width = net.width;
  in = register_module("in", torch::nn::Linear(width, width));
  for (int i = 0; i < net.blocks; ++i)
    blocks.push_back(register_module("block" + std::to_string(i), Block(width, i % 2 == 0)));
  out = register_module("out", Head(net.tied ? in->weight : torch::randn({width, width}) * 0.3, width));
  extra = register_module("extra", Extra(net));
}

at::Tensor ModelImpl::run_block(size_t i, const at::Tensor& x, const Way& way) {
  const bool gate = ((way.gates >> i) & 1U) != 0;
  const auto block = [block = blocks[i], gate](const at::Tensor& in) {
    return block.ptr()->forward(in, gate);
  };
  const RecomputeOptions options{.offload_inputs = ((way.again >> (i + 1)) & 1U) != 0};
  return ((way.again >> i) & 1U) != 0 ? recompute(options, block, x) : block(x);
}

at::Tensor ModelImpl::forward(const at::Tensor& x, Way way) {
  at::Tensor h = in(x);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (way.fail_at == static_cast<int>(i)) throw std::runtime_error("a forward of the user's that throws");
    if (way.skip != static_cast<int>(i)) h = run_block(i, h, way);
  }
  if (twice_ && way.skip != 0) h = run_block(0, h, way);
  h = extra(h);
  if (way.fail_at == -2) h = Breaks::apply(h);
  return out(h);
}

at::ScalarType kept_type(const Net& net) { return net.single ? at::kFloat : at::kDouble; }

std::shared_ptr<ModelImpl> make_model(const Net& net) {
  const testing::SeededHere seeded(11);
  auto model = std::make_shared<ModelImpl>(net);
  for (auto& param : parameters_of(*model))
    if (param.is_floating_point()) param.set_data(param.to(kept_type(net)));
  if (net.frozen) model->blocks[0]->up->weight.set_requires_grad(false);
  return model;
}

std::vector<at::Tensor> parameters_of(ModelImpl& model) {
  std::vector<at::Tensor> params;
  for (auto& item : model.named_parameters())
    if (std::none_of(params.begin(), params.end(),
                     [&](const at::Tensor& p) { return p.is_same(item.value()); }))
      params.push_back(item.value());
  return params;
}

}  // namespace fsdp::fuzz
