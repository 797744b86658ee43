// The backward (autograd's graph task) that this thread works for.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <span>

#include "runtime/unit.h"

namespace fsdp::detail {

// -1: none.
inline int graph_task() { return torch::autograd::get_current_graph_task_id(); }

// True if the graph of the backward stays, as with create_graph: then a gradient that autograd adds to
// becomes another tensor.
inline bool graph_stays() {
  return graph_task() != -1 && torch::autograd::get_current_graph_task_keep_graph();
}

// Calls `fn` with the error that ends this thread's backward, on the thread that met it and before its owner
// sees it; never if there is no error.
void on_task_failure(std::function<void(const std::exception_ptr&)> fn);

// True if the backward may give one of `params` a gradient. False in torch::autograd::grad() of inputs, and
// in a backward() to given inputs alone.
inline bool asks_for_any(std::span<UnitParam* const> params) {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;  // a backward() asks for all
  return std::any_of(params.begin(), params.end(), [&](const UnitParam* param) {
    const auto found = wanted->find(param->accumulator.get());
    return found != wanted->end() && found->second.should_execute();
  });
}

}  // namespace fsdp::detail
