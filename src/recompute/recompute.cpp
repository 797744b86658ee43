#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/recompute.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <set>

#include "recompute/replay_state.h"

namespace fsdp {

namespace detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Node;
using TensorVector = std::vector<at::Tensor>;

// Note [Recomputation]
// A node of autograd that stands for all of `fn`. Its forward runs `fn` without a graph; its backward runs it
// with one, on inputs cut off from theirs, and then a backward of its own through that graph, a task inside
// the task (Note [The end of a backward]): parameters get their gradients there, inputs hand theirs on. The
// node needs an input that requires a gradient, or autograd would leave it out: so it has one of its own,
// for calls in which only the parameters do. A sharded model sees accesses of the same unit in one phase,
// backward, so the second run of a block and its backward are one run of the plan, and the unit is gathered
// once for both.
struct Kept : torch::CustomClassHolder {
  TensorFunction fn;
  RecomputeOptions options;
  std::vector<c10::Device> devices;  // that it may draw random numbers on
  AutocastState autocast;
  std::optional<GeneratorStates> generators;
  std::vector<c10::Device> homes;  // of inputs that went to the host; the CPU: it did not
};

// Those of the tensors, and the current one: a function may find its tensors itself, or move its inputs.
std::vector<c10::Device> devices_of(const TensorVector& tensors) {
  std::vector<c10::Device> devices;
  const auto add = [&](c10::Device device) {
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  };
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) add(tensor.device());
  if (const auto type = at::getAccelerator(); type) {
    const c10::Device current = c10::impl::VirtualGuardImpl(*type).getDevice();
    const auto& hooks = at::globalContext().getAcceleratorHooksInterface(*type);
    if (hooks.hasPrimaryContext(current.index())) add(current);  // else nothing was computed there
  }
  return devices;
}

// Note [What a backward asks for]
// autograd::grad() and backward(inputs) want gradients of some tensors alone: then no parameter may get one
// from the backward inside. What grad() wants comes out by the inputs. What backward(inputs) wants may be a
// parameter of `fn`, which autograd does not find behind this node: that is refused.
bool asks_for_some() {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return false;
  TORCH_CHECK(std::any_of(wanted->begin(), wanted->end(),
                          [](const auto& one) { return one.second.captures_ != nullptr; }),
              "fsdp: recompute() inside a backward to given inputs: parameters of the function would be left "
              "out. Call backward() without them, or torch::autograd::grad() for gradients of its inputs");
  return true;
}

std::vector<int64_t> versions_of(const TensorVector& tensors) {
  std::vector<int64_t> versions;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && !tensor.is_inference()) versions.push_back(tensor._version());
  return versions;
}

// Nodes that `roots` lead to and that this thread did not make since `first`, other than those of leaves.
bool leads_outside(const TensorVector& roots, uint64_t first) {
  const uint64_t thread = at::RecordFunction::currentThreadId();
  std::vector<Node*> open;
  std::set<Node*> seen;
  const auto add = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& root : roots) add(root.grad_fn().get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    const bool leaf = node->sequence_nr() == UINT64_MAX;
    if (!leaf && (node->thread_id() != thread || node->sequence_nr() < first)) return true;
    for (const auto& edge : node->next_edges()) add(edge.function.get());
  }
  return false;
}

struct Recomputed : torch::autograd::Function<Recomputed> {
  static TensorVector forward(AutogradContext* ctx, c10::intrusive_ptr<Kept> kept, const at::Tensor& /*own*/,
                              at::TensorList list) {
    const TensorVector inputs = list.vec();
    TensorVector saved = inputs;
    kept->homes.assign(inputs.size(), c10::kCPU);
    if (kept->options.offload_inputs)
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].defined() || inputs[i].is_cpu()) continue;
        kept->homes[i] = inputs[i].device();
        saved[i] = to_host(inputs[i]);
      }
    const std::vector<int64_t> versions = versions_of(inputs);
    const TensorVector outputs = kept->fn(inputs);
    TORCH_CHECK(versions_of(inputs) == versions,
                "fsdp: recompute(): the function wrote to one of its inputs, and would do so again in "
                "backward. Write to a copy: x = x.clone()");
    ctx->save_for_backward(std::move(saved));
    ctx->set_materialize_grads(false);  // what nobody used has no gradient, and gives none
    ctx->saved_data["kept"] = torch::IValue::make_capsule(std::move(kept));
    return outputs;
  }

  static TensorVector backward(AutogradContext* ctx, TensorVector grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "fsdp: recompute() inside backward(create_graph = true): its second run is no part of the "
                "graph. Call the function itself where gradients of gradients are needed");
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(ctx->saved_data.at("kept").toCapsule());
    TensorVector inputs = ctx->get_saved_variables();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      const bool wanted = ctx->needs_input_grad(i + 1);  // its own comes first
      inputs[i] = kept->homes[i].is_cpu() ? inputs[i].detach() : inputs[i].to(kept->homes[i], true);
      inputs[i].set_requires_grad(wanted);
    }
    TensorVector result(2);  // of what is kept, and of the node's own input
    for (at::Tensor& grad : run_backward(*kept, inputs, std::move(grads))) result.push_back(std::move(grad));
    return result;
  }

 private:
  // Pinned, so that the copy does not hold the host up.
  static at::Tensor to_host(const at::Tensor& tensor) {
    at::Tensor host = at::empty_like(tensor, tensor.options().device(c10::kCPU).pinned_memory(true));
    return host.copy_(tensor.detach(), /*non_blocking=*/true);
  }

  // Returns the gradients of `inputs`.
  static TensorVector run_backward(const Kept& kept, const TensorVector& inputs, TensorVector grads) {
    const bool inputs_alone = asks_for_some();
    const uint64_t first = at::sequence_number::peek();
    TensorVector outputs;
    {
      const at::AutoGradMode with_grad(true);
      const Replay replay(kept.generators ? &*kept.generators : nullptr, kept.autocast, kept.devices);
      outputs = kept.fn(inputs);
    }
    TORCH_CHECK(outputs.size() == grads.size(), "fsdp: recompute(): the function returned ", grads.size(),
                " tensors in forward and ", outputs.size(), " in backward");
    TensorVector roots, roots_grads;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad() || !grads[i].defined()) continue;
      TORCH_CHECK(outputs[i].sizes() == grads[i].sizes(),
                  "fsdp: recompute(): the function returned another shape in backward, ", outputs[i].sizes(),
                  ", than in forward, ", grads[i].sizes());
      roots.push_back(outputs[i]);
      roots_grads.push_back(std::move(grads[i]));
    }
    TensorVector result(inputs.size());
    if (roots.empty()) return result;
    TORCH_CHECK(!leads_outside(roots, first),
                "fsdp: recompute(): the function captured a tensor that was computed outside of it and needs "
                "gradients. Pass it as an input: recompute(fn, x, that_tensor)");
    if (!inputs_alone) {
      torch::autograd::backward(roots, roots_grads);
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].defined()) result[i] = inputs[i].grad();
      return result;
    }
    TensorVector wanted;
    for (const at::Tensor& input : inputs)
      if (input.defined() && input.requires_grad()) wanted.push_back(input);
    if (wanted.empty()) return result;
    TensorVector got = torch::autograd::grad(roots, wanted, roots_grads, /*retain_graph=*/false,
                                             /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0, next = 0; i < inputs.size(); ++i)
      if (inputs[i].defined() && inputs[i].requires_grad()) result[i] = std::move(got[next++]);
    return result;
  }
};

}  // namespace

TensorVector recompute(TensorFunction fn, const TensorVector& inputs, const RecomputeOptions& options) {
  if (!at::GradMode::is_enabled()) return fn(inputs);
  auto kept = c10::make_intrusive<Kept>();
  kept->fn = std::move(fn);
  kept->options = options;
  kept->devices = devices_of(inputs);
  if (options.keep_rng) kept->generators.emplace(kept->devices);
  const at::Tensor own = at::empty({0}).set_requires_grad(true);
  return Recomputed::apply(std::move(kept), own, at::TensorList(inputs));
}

}  // namespace detail

BlockPolicy every_block(int64_t k) {
  TORCH_CHECK(k >= 1, "fsdp: every_block(", k, "): every how many-th block is to be computed again? 1: all");
  return [k](int64_t block) { return block % k == k - 1; };
}

BlockRunner recompute_blocks(BlockPolicy policy, const RecomputeOptions& options) {
  return [policy = std::move(policy), options](
             int64_t block, const std::function<at::Tensor(const at::Tensor&)>& forward,
             const at::Tensor& x) { return policy(block) ? recompute(options, forward, x) : forward(x); };
}

at::Tensor recompute_sequential(torch::nn::SequentialImpl& sequential, const at::Tensor& x,
                                const BlockPolicy& policy, const RecomputeOptions& options) {
  TORCH_CHECK(!sequential.is_empty(), "fsdp: recompute_sequential() of a Sequential without modules");
  const BlockRunner run = recompute_blocks(policy, options);
  at::Tensor y = x;
  int64_t block = 0;
  for (torch::nn::AnyModule& module : sequential)
    y = run(
        block++, [module](const at::Tensor& input) mutable { return module.forward<at::Tensor>(input); }, y);
  return y;
}

}  // namespace fsdp
