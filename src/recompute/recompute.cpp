#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/recompute.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>

#include "recompute/replay_state.h"
#include "recompute/run_graph.h"
#include "recompute/side_effects.h"

namespace fsdp {

namespace detail {

namespace {

using torch::autograd::AutogradContext;
using TensorVector = std::vector<at::Tensor>;

// Note [Recomputation]
// One autograd node stands for all of `fn`. The first run has a graph of its own, on inputs cut off from
// theirs (RunGraph). That graph is kept only until it has shown what the results depend on: results that need
// no gradients are returned as they are, so a frozen block is a plain call; parameters become inputs of the
// node, beside the inputs that need gradients. Backward runs `fn` again, and then runs backward through that
// graph, a task inside the task (Note [The end of a backward]). The node passes on the gradients that arrive
// at inputs and parameters. So autograd accumulates a parameter's gradient once in a backward, however many
// calls have read it, as without recomputation; it knows which gradients a backward asks for; and a
// parameter's own hooks see its gradient once.
//
// A sharded model sees accesses of the same unit in one phase, backward, so the second run of a block and its
// backward are one run of the plan, and the unit is gathered once for both.
struct Kept : torch::CustomClassHolder {
  TensorFunction fn;
  AutocastState autocast;
  std::optional<GeneratorStates> generators;
  TensorVector buffers;            // written by the first run
  std::vector<c10::Device> homes;  // of inputs that were offloaded; CPU: not offloaded
  TensorVector params;             // those that need gradients
  std::vector<int64_t> versions;   // of `params`, after the first run
  std::vector<size_t> cut;         // indices of inputs that need gradients
  std::vector<size_t> results;     // indices of outputs that need gradients
  size_t outputs = 0;              // number of all outputs
};

// Devices of the tensors, and the current one: a function may get its tensors elsewhere, or move its inputs.
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

std::vector<int64_t> versions_of(const TensorVector& tensors) {
  std::vector<int64_t> versions;
  for (const at::Tensor& tensor : tensors)
    versions.push_back(tensor.defined() && !tensor.is_inference() ? tensor._version() : 0);
  return versions;
}

bool needs_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

// Pinned, so that the copy does not block the host.
at::Tensor to_host(const at::Tensor& tensor) {
  at::Tensor host = at::empty_like(tensor, tensor.options().device(c10::kCPU).pinned_memory(true));
  return host.copy_(tensor.detach(), /*non_blocking=*/true);
}

// Runs `fn`, finds out what backward will need, and returns its results without their graph.
TensorVector run_first(Kept& kept, const TensorVector& inputs) {
  TensorVector cut = inputs;
  const std::vector<int64_t> versions = versions_of(inputs);
  SideEffects effects(kept.generators ? &*kept.generators : nullptr);
  TensorVector outputs;
  {
    const NoCastCache no_casts;
    RunGraph graph;
    for (size_t i = 0; i < cut.size(); ++i)
      if (needs_gradient(cut[i])) {
        cut_off(cut[i]);
        kept.cut.push_back(i);
      }
    outputs = kept.fn(cut);
    TORCH_CHECK(versions_of(inputs) == versions,
                "fsdp: recompute(): the function wrote to one of its inputs, and would do so again in "
                "backward. Write to a copy: x = x.clone()");
    TensorVector roots;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (needs_gradient(outputs[i])) {
        roots.push_back(outputs[i]);
        kept.results.push_back(i);
      }
    graph.outputs(roots);
    kept.params = graph.leaves();
  }
  kept.versions = versions_of(kept.params);
  kept.outputs = outputs.size();
  for (const size_t i : kept.results) outputs[i] = outputs[i].detach();
  kept.buffers = effects.buffers(outputs);
  return outputs;
}

void check_versions(const Kept& kept) {
  const std::vector<int64_t> now = versions_of(kept.params);
  for (size_t i = 0; i < now.size(); ++i)
    TORCH_CHECK(now[i] == kept.versions[i], "fsdp: recompute(): a parameter of the function, of shape ",
                kept.params[i].sizes(), ", was written between forward and backward (it is at version ",
                now[i], " instead of ", kept.versions[i],
                "), so the second run is of another value. Call backward() before the optimizer steps");
}

struct Recomputed : torch::autograd::Function<Recomputed> {
  // `differentiable`: inputs that need gradients, then parameters. `results` are those that need them.
  static TensorVector forward(AutogradContext* ctx, c10::intrusive_ptr<Kept> kept, TensorVector saved,
                              TensorVector results, at::TensorList /*differentiable*/) {
    ctx->save_for_backward(std::move(saved));
    ctx->set_materialize_grads(false);  // unused outputs have no gradient, and give none
    ctx->saved_data["kept"] = torch::IValue::make_capsule(std::move(kept));
    return results;
  }

  static TensorVector backward(AutogradContext* ctx, TensorVector grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "fsdp: recompute() inside backward(create_graph = true): its second run is no part of the "
                "graph. Call the function itself where gradients of gradients are needed");
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(ctx->saved_data.at("kept").toCapsule());
    TensorVector inputs = ctx->get_saved_variables();
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined())
        inputs[i] = kept->homes[i].is_cpu() ? inputs[i].detach() : inputs[i].to(kept->homes[i], true);
    const GraphEnds ends = run_backward(*kept, *ctx, std::move(inputs), std::move(grads));
    TensorVector result(3);  // no gradients of `kept`, `saved`, `results`
    for (const auto& end : ends) result.push_back(end ? std::move(end->gradient) : at::Tensor());
    return result;
  }

 private:
  using GraphEnds = std::vector<GraphEndPtr>;

  // Ends with the gradients of inputs and parameters; null: that gradient was not asked for.
  static GraphEnds run_backward(const Kept& kept, const AutogradContext& ctx, TensorVector inputs,
                                TensorVector grads) {
    GraphEnds ends(kept.cut.size() + kept.params.size());
    RunGraph graph;
    for (size_t i = 0; i < kept.cut.size(); ++i)
      if (ctx.needs_input_grad(i)) ends[i] = cut_off(inputs[kept.cut[i]]);
    TensorVector outputs;
    {
      const at::AutoGradMode with_grad(true);
      const Replay replay(kept.generators ? &*kept.generators : nullptr, kept.autocast);
      const BufferValues buffers(kept.buffers);
      outputs = kept.fn(inputs);
    }
    check_versions(kept);
    TensorVector roots = roots_of(kept, outputs, grads);
    outputs.clear();
    graph.outputs(roots);
    roots.clear();
    GraphEnds of_leaves;
    for (const at::Tensor& leaf : graph.leaves()) {
      const size_t i = kept.cut.size() + number_of(kept, leaf);
      if (ctx.needs_input_grad(i)) ends[i] = make_end(leaf);
      of_leaves.push_back(ends[i]);
    }
    graph.backward(std::move(grads), of_leaves);
    return ends;
  }

  // The results that got gradients. Only their gradients stay in `grads`.
  static TensorVector roots_of(const Kept& kept, const TensorVector& outputs, TensorVector& grads) {
    TORCH_CHECK(outputs.size() == kept.outputs, "fsdp: recompute(): the function returned ", kept.outputs,
                " tensors in forward and ", outputs.size(), " in backward");
    TensorVector roots, roots_grads;
    for (size_t i = 0; i < kept.results.size(); ++i) {
      const at::Tensor& output = outputs[kept.results[i]];
      if (!grads[i].defined() || !needs_gradient(output)) continue;
      TORCH_CHECK(output.sizes() == grads[i].sizes(),
                  "fsdp: recompute(): the function returned another shape in backward, ", output.sizes(),
                  ", than in forward, ", grads[i].sizes());
      roots.push_back(output);
      roots_grads.push_back(std::move(grads[i]));
    }
    grads = std::move(roots_grads);
    return roots;
  }

  static size_t number_of(const Kept& kept, const at::Tensor& leaf) {
    const auto found = std::find_if(kept.params.begin(), kept.params.end(),
                                    [&](const at::Tensor& param) { return param.is_same(leaf); });
    TORCH_CHECK(
        found != kept.params.end(), "fsdp: recompute(): the function read a parameter in backward, of shape ",
        leaf.sizes(),
        ", that it did not read in forward, or that needed no gradient then. It must compute the same "
        "from the same inputs");
    return static_cast<size_t>(found - kept.params.begin());
  }
};

}  // namespace

TensorVector recompute(TensorFunction fn, const TensorVector& inputs, const RecomputeOptions& options) {
  if (!at::GradMode::is_enabled()) return fn(inputs);
  auto kept = c10::make_intrusive<Kept>();
  kept->fn = std::move(fn);
  if (options.keep_rng) kept->generators.emplace(devices_of(inputs));
  TensorVector saved = inputs;
  kept->homes.assign(inputs.size(), c10::kCPU);
  for (size_t i = 0; options.offload_inputs && i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i].is_cpu()) continue;
    kept->homes[i] = inputs[i].device();
    saved[i] = to_host(inputs[i]);
  }
  TensorVector outputs = run_first(*kept, inputs);
  if (kept->results.empty()) return outputs;
  TensorVector differentiable, results;
  for (const size_t i : kept->cut) differentiable.push_back(inputs[i]);
  differentiable.insert(differentiable.end(), kept->params.begin(), kept->params.end());
  for (const size_t i : kept->results) results.push_back(std::move(outputs[i]));
  const std::vector<size_t> numbers = kept->results;
  results = Recomputed::apply(std::move(kept), std::move(saved), std::move(results),
                              at::TensorList(differentiable));
  for (size_t i = 0; i < numbers.size(); ++i) outputs[numbers[i]] = std::move(results[i]);
  return outputs;
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
