#include "recompute/run_graph.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_set>

namespace fsdp::detail {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;

torch::autograd::variable_list GraphEnd::apply(torch::autograd::variable_list&& grads) {
  gradient = std::move(grads.front());
  return {};
}

GraphEndPtr make_end(const at::Tensor& tensor) {
  auto end = std::make_shared<GraphEnd>();
  end->add_input_metadata(tensor);
  return end;
}

GraphEndPtr cut_off(at::Tensor& input) {
  auto end = std::make_shared<GraphEnd>();
  input = input.detach();
  torch::autograd::set_history(input, end);
  return end;
}

RunGraph::RunGraph() : first_(at::sequence_number::peek()) {}

void RunGraph::outputs(const std::vector<at::Tensor>& outputs) {
  const uint64_t thread = at::RecordFunction::currentThreadId();
  std::unordered_set<Node*> seen;
  const auto add = [&](const Edge& edge) {
    Node* node = edge.function.get();
    if (node == nullptr || !seen.insert(node).second) return;
    if (const auto* leaf = dynamic_cast<AccumulateGrad*>(node)) {
      accumulators_.push_back(node);
      leaves_.push_back(leaf->variable);
      return;
    }
    TORCH_CHECK(node->thread_id() == thread && node->sequence_nr() >= first_,
                "fsdp: recompute(): the function captured a tensor that was computed outside of it and needs "
                "gradients. Pass it as an input: recompute(fn, x, that_tensor)");
    nodes_.push_back(node);
  };
  for (const at::Tensor& output : outputs)
    add(roots_.emplace_back(torch::autograd::impl::gradient_edge(output)));
  for (size_t i = 0; i < nodes_.size(); ++i)
    for (const Edge& edge : nodes_[i]->next_edges()) add(edge);
}

// The nodes belong to this run, so their edges may be redirected.
void RunGraph::backward(std::vector<at::Tensor> grads, const std::vector<GraphEndPtr>& ends) {
  const auto lead = [&](Edge& edge) {
    const auto found = std::find(accumulators_.begin(), accumulators_.end(), edge.function.get());
    if (found == accumulators_.end()) return;
    const GraphEndPtr& end = ends[static_cast<size_t>(found - accumulators_.begin())];
    edge = end ? Edge(end, 0) : Edge();
  };
  for (Node* node : nodes_)
    for (Edge& edge : node->next_edges()) lead(edge);
  torch::autograd::edge_list roots;
  std::vector<at::Tensor> root_grads;
  for (size_t i = 0; i < roots_.size(); ++i) {
    lead(roots_[i]);
    if (!roots_[i].is_valid()) continue;
    roots.push_back(std::move(roots_[i]));
    root_grads.push_back(std::move(grads[i]));
  }
  roots_.clear();
  nodes_.clear();
  if (roots.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(roots, root_grads, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace fsdp::detail
