// Figures of all ranks, on every rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fsdp/comm.h>
#include <fsdp/world.h>

#include <algorithm>
#include <vector>

namespace bench {

// [ranks, figures] on the CPU, in fp64. Collective; as many figures on every rank.
inline at::Tensor gather_figures(const fsdp::World& world, const std::vector<double>& figures) {
  const auto count = static_cast<int64_t>(figures.size());
  auto mine = at::empty({count}, at::kDouble);
  std::copy(figures.begin(), figures.end(), mine.data_ptr<double>());
  auto all = at::empty({world.size() * count}, at::TensorOptions(at::kDouble).device(world.device()));
  auto comm = fsdp::Comm::create(world);
  comm.all_gather(all, mine.to(world.device()), "figures").wait();
  return all.cpu().view({world.size(), count});
}

}  // namespace bench
