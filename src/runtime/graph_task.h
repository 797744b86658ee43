// The backward that this thread works for.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

namespace fsdp::detail {

// -1: none.
inline int graph_task() { return torch::autograd::get_current_graph_task_id(); }

// Whether its graph stays, as with create_graph: then a gradient that autograd adds to becomes another
// tensor.
inline bool graph_stays() {
  return graph_task() != -1 && torch::autograd::get_current_graph_task_keep_graph();
}

}  // namespace fsdp::detail
