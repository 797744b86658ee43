// The backward that this thread works for.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

namespace fsdp::detail {

// -1: none.
inline int graph_task() { return torch::autograd::get_current_graph_task_id(); }

}  // namespace fsdp::detail
