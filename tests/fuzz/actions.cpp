#include "fuzz/actions.h"

#include <fsdp/optim.h>

namespace fsdp::fuzz {

using at::Tensor;

at::ScalarType compute_type(const Program& program) {
  const at::ScalarType kTypes[] = {kept_type(program.net), at::kFloat, at::kBFloat16};
  return kTypes[static_cast<size_t>(program.compute)];
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Program& program, std::vector<Tensor> params) {
  // A large epsilon: gradients that are rounding errors must not become steps.
  switch (program.optimizer) {
    case Optimizer::adamw:
      return std::make_unique<torch::optim::AdamW>(
          std::move(params), torch::optim::AdamWOptions(1e-2).weight_decay(0.1).eps(0.1));
    case Optimizer::fused_adamw:
      if (!program.net.complex)
        return std::make_unique<AdamW>(std::move(params), AdamWOptions(1e-2).weight_decay(0.1).eps(0.1));
      [[fallthrough]];
    default:
      return std::make_unique<torch::optim::SGD>(
          std::move(params), torch::optim::SGDOptions(5e-3).momentum(0.9).weight_decay(0.1));
  }
}

Tensor input(const Program& program, size_t at, int rank, int k) {
  const auto seed =
      static_cast<uint64_t>(1000 + at * 64 + static_cast<size_t>(rank) * 8 + static_cast<size_t>(k));
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return torch::randn({1 + static_cast<int64_t>(seed % 3), program.net.width}, generator, torch::kDouble)
      .to(kept_type(program.net));
}

Tensor loss_of(const Tensor& y) { return (y.to(at::kDouble) - 0.3).square().mean(); }

Tensor penalty_over(const std::vector<Tensor>& params) {
  Tensor total = torch::zeros({}, params.front().options().dtype(at::kDouble).requires_grad(false));
  for (const Tensor& p : params)
    if (p.requires_grad())
      total = total + 0.05 * (p.is_complex() ? torch::view_as_real(p).square() : p.square()).sum();
  return total;
}

Way way_of(const Program& program, const Action& action, int rank, int k, bool other_device) {
  const int blocks = program.net.blocks;
  // Ranks may differ inside a unit only, and only on the CPU.
  const bool alike = other_device || program.wrap == Wrap::cut || program.wrap == Wrap::sizes;
  const int who = alike ? 0 : rank;
  switch (action.what) {
    case Do::drop_block:
      return {.skip = action.a % blocks};
    case Do::gates:
      return {.gates = static_cast<unsigned>(action.a + who * action.b)};
    case Do::gate_in_one_of_two: {
      const bool here = k == 0 && (alike || rank == action.b % program.ranks);
      return {.gates = here ? 1U << (action.a % blocks) : 0U};
    }
    case Do::fail_forward:
      return {.fail_at = action.a % blocks};
    case Do::fail_backward:
      return {.fail_at = -2};
    default:
      return {.gates = action.a == 11 ? 1U : 0U};
  }
}

bool with_graph(const Action& action) { return action.what == Do::penalty_first && action.b % 3 == 0; }

void change(Tensor& values, double factor) {
  const at::NoGradGuard no_grad;
  if (values.is_floating_point() || values.is_complex())
    values.mul_(factor);
  else
    values.add_(1);
}

std::vector<int64_t> token_counts(const Action& action, int rank) {
  return {(action.a + rank * action.b) % 5, action.a == 0 ? 0 : (action.b + rank) % 4};
}

size_t frozen_by(const Action& action, size_t params) {
  return 1 + static_cast<size_t>(action.a) % (params - 1);
}

}  // namespace fsdp::fuzz
