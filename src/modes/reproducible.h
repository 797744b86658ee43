// Reproducible mode: the same bits for every number of ranks.
#pragma once

#include <fsdp/options.h>
#include <fsdp/world.h>
#include <torch/nn/module.h>

#include <map>
#include <vector>

#include "runtime/step_mode.h"

namespace fsdp::detail {

// Note [Reproducible]
// A step is V microbatches; microbatch i runs on rank i mod W, in backward i / W. Gradients are summed along
// one binary tree over i. Its low levels are over the ranks of a backward, in the reduce. Its high levels are
// over the backwards: finished subtrees wait as partial sums until their neighbour is there. V and W are
// powers of two, so the tree is the same for every W. The tree adds whole gradients of a backward, so a
// parameter's gradient must not arrive in parts of which one was already reduced (gradient_hooks.cpp). Random
// numbers are keyed by step and microbatch. Regions are padded for V ranks, so that V equal segments have the
// same elements on any number of ranks: norms and hashes are computed segment by segment, and combined in
// their order.
class Reproduction final : public StepMode {
 public:
  // Throws c10::Error if options or module do not allow it.
  Reproduction(const Reproducible& options, const World& world, const ShardOptions& all,
               const torch::nn::Module& module);

  // Units are cut as for this number of ranks; each rank owns several of these shards.
  int pieces() const { return options_.microbatches; }

  // Seeds the generators.
  void before_forward() override;
  void add(const UnitRegion& region, const at::Tensor& sum) override;
  bool end_backward(const Units& units, const Take& take) override;
  void drop_backward() override;
  void restart(const Units& units) override;
  void check_write() const override;
  int64_t held_bytes() const override;
  // The same bits for every W.
  double norm_sum(const Units& units, Mesh& mesh, double p) const override;
  uint64_t hash(const Units& units, Mesh& mesh) const override;

 private:
  struct Sums {
    at::Tensor now;                    // [shard_numel] of this backward
    std::vector<at::Tensor> partials;  // of earlier backwards, by level of the tree
  };

  template <class Value>
  std::vector<double> over_segments(const Units& units, Mesh& mesh, Value value) const;
  // Number of microbatches of this step that are done, over all ranks.
  int done() const { return backwards_ * ranks_; }

  Reproducible options_;
  c10::Device device_;
  int rank_, ranks_;
  bool average_;
  int backwards_ = 0;
  int64_t forwards_ = 0;  // of this backward
  std::map<const UnitRegion*, Sums> sums_;
};

}  // namespace fsdp::detail
