// The same bits for every number of ranks.
#pragma once

#include <fsdp/options.h>
#include <fsdp/world.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "runtime/mesh.h"
#include "runtime/unit.h"

namespace fsdp::detail {

// Note [Reproducible]
// A step is V microbatches; microbatch i runs on rank i mod W, in round i / W. Gradients are summed along one
// binary tree over i: its low levels over the ranks of a round, in the reduce, its high levels over the
// rounds, where finished subtrees wait as partial sums until their neighbour is there. V and W are powers of
// two, so the tree is the same for every W. Random numbers are keyed by step and microbatch. Regions are
// padded for V ranks, so that V equal segments are the same elements on any number of ranks: norms and hashes
// are taken segment by segment, and put together in their order.
class Reproduction {
 public:
  // Throws c10::Error when options or module do not allow it.
  Reproduction(const Reproducible& options, const World& world, const ShardOptions& all,
               const torch::nn::Module& module);

  // How a unit is cut: as for V ranks, of whose shards each of `ranks` owns several.
  UnitLayout make_layout(const UnitDecl& unit, int ranks, int64_t narrowest) const;

  // Before a forward of the training: seeds the generators.
  void seed_forward();

  // `sum` of one round's gradients, or of a part of them.
  static void add(UnitRegion& region, const at::Tensor& sum);
  // Every gradient of the round was added. True: it was the last of the step, and `take` was given the total
  // of every region (undefined: no rank had any) and what to multiply it by.
  using Take = std::function<void(UnitRegion&, const at::Tensor& sum, double scale)>;
  bool end_round(const std::vector<std::shared_ptr<Unit>>& units, const Take& take);
  // A backward failed: what it left of this round is dropped, and the round starts again.
  void drop_round(const std::vector<std::shared_ptr<Unit>>& units);
  // Gradients so far are dropped; the step starts again.
  void restart(const std::vector<std::shared_ptr<Unit>>& units);
  // Microbatches of this step that are done, over all ranks.
  int done() const { return round_ * ranks_; }
  int microbatches() const { return options_.microbatches; }

  // Sum over all gradients of |x|^p, or the largest |x| for infinity, the same bits for every W. Collective.
  double norm_sum(const std::vector<std::shared_ptr<Unit>>& units, Mesh& mesh, double p) const;
  uint64_t hash(const std::vector<std::shared_ptr<Unit>>& units, Mesh& mesh) const;

  int64_t step = 0;

 private:
  template <class Value>
  std::vector<double> over_segments(const std::vector<std::shared_ptr<Unit>>& units, Mesh& mesh,
                                    Value value) const;

  Reproducible options_;
  c10::Device device_;
  int rank_, ranks_;
  bool average_;
  int round_ = 0;
  int64_t forwards_ = 0;  // of this round
};

}  // namespace fsdp::detail
