// The autograd graph of one run of a recomputed function, cut off from the graph around it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

namespace fsdp::detail {

// An end of a run's graph: keeps the gradient that arrives.
struct GraphEnd final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  at::Tensor gradient;
};

using GraphEndPtr = std::shared_ptr<GraphEnd>;

// An end for gradients of `tensor`.
GraphEndPtr make_end(const at::Tensor& tensor);
// Makes `input` a tensor whose history is an end. It is no leaf, so operators may write to it as before.
GraphEndPtr cut_off(at::Tensor& input);

// One run: the operators of this thread from its construction to outputs().
class RunGraph {
 public:
  RunGraph();
  // Follows the graph from `outputs`, tensors that require gradients. Throws c10::Error if it leads to a
  // tensor that was computed outside of the run.
  void outputs(const std::vector<at::Tensor>& outputs);

  // The tensors that the run read and that need gradients, those cut off excluded: parameters.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  // Runs backward through the graph and frees it. The gradient of leaves()[i] goes to ends[i]; null: it is
  // not computed.
  void backward(std::vector<at::Tensor> grads, const std::vector<GraphEndPtr>& ends);

 private:
  uint64_t first_;  // sequence number of the first node of the run
  torch::autograd::edge_list roots_;
  std::vector<torch::autograd::Node*> nodes_;         // of the run
  std::vector<torch::autograd::Node*> accumulators_;  // of leaves
  std::vector<at::Tensor> leaves_;
};

}  // namespace fsdp::detail
