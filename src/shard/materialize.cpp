// materialize(): values for a module made by on_meta(), without sharding.
#include <ATen/ops/empty_like.h>
#include <fsdp/on_meta.h>
#include <torch/nn/module.h>

#include <map>

#include "shard/tape.h"

namespace fsdp {

void materialize(torch::nn::Module& module) {
  struct Wanted {
    std::vector<detail::TapedTensor> places;
    std::vector<at::Tensor> tensors;
  };
  std::map<std::shared_ptr<detail::Tape>, Wanted> by_tape;
  auto tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  for (const at::Tensor& tensor : tensors) {
    const auto tape = detail::Tape::of(tensor);
    if (!tape) continue;
    by_tape[tape].places.push_back(detail::Tape::place_of(tensor));
    by_tape[tape].tensors.push_back(tensor);
  }
  const at::NoGradGuard no_grad;
  for (auto& [tape, wanted] : by_tape)
    tape->replay(wanted.places, [&tensors = wanted.tensors](size_t i, const at::Tensor& value) {
      tensors[i].unsafeGetTensorImpl()->shallow_copy_from(value.detach().getIntrusivePtr());
    });
}

}  // namespace fsdp
