// SideEffects: memory that a function reads and writes besides inputs and results, seen from its operators.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <vector>

#include "recompute/replay_state.h"

namespace fsdp::detail {

// Note [Side effects]
// A function that runs twice must have the effects of one run. While a SideEffects lives, every operator on
// this thread shows its arguments (at::RecordFunction):
//   - Tensors that are written in place and need no gradients are buffers if they outlive the run: running
//     statistics, counts of batches. The second run writes to them as well, so they get their values back
//     after it. Operators that LibTorch's kernels or a sharded model run underneath do not count.
//   - A generator among the arguments is the user's own. Its state before the run is kept, and the second run
//     draws from there.
// Calls may be nested: all that live see an operator.
class SideEffects {
 public:
  // `generators`: generators that are seen are added to it; null: they are not replayed.
  explicit SideEffects(GeneratorStates* generators);
  ~SideEffects();
  SideEffects(const SideEffects&) = delete;
  SideEffects& operator=(const SideEffects&) = delete;

  // Call it when the function has returned `outputs` and its graph is gone. Returns tensors, with version
  // counters of their own, over the memory that it wrote and that still exists.
  std::vector<at::Tensor> buffers(const std::vector<at::Tensor>& outputs);

 private:
  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& record);
  void note_write(const at::Tensor& tensor);

  // A tensor that is not kept alive.
  struct Written {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const c10::StorageImpl* address;
    int64_t offset;
    std::vector<int64_t> sizes, strides;
    at::TensorOptions options;
  };

  GeneratorStates* generators_;
  SideEffects* outer_;
  at::CallbackHandle callback_ = 0;
  std::vector<Written> written_;
};

// While it lives, `buffers` may be written; then their values are restored.
class BufferValues {
 public:
  explicit BufferValues(const std::vector<at::Tensor>& buffers);
  ~BufferValues();
  BufferValues(const BufferValues&) = delete;
  BufferValues& operator=(const BufferValues&) = delete;

 private:
  const std::vector<at::Tensor>& buffers_;
  std::vector<at::Tensor> values_;
};

}  // namespace fsdp::detail
