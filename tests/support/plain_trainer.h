// The unsharded training loop that a sharded model must equal: one model sees the batches of all ranks.
#pragma once

#include <fsdp/comm.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::testing {

using State = std::map<std::string, at::Tensor>;  // parameter name -> whole value

struct PlainOptions {
  // The dtype that a parameter computes in; null: its own.
  std::function<at::ScalarType(const std::string& name, at::ScalarType master)> compute = {};
  std::optional<at::ScalarType> reduce = {};  // of gradients on their way to other ranks; none: the master's
  ReduceOp op = ReduceOp::average;
  double divide_by = 0;  // of their sum; 0: as `op` says
};

// Holds masters, which an optimizer trains. The model computes with copies of them. Gradients are summed over
// ranks along the tree of Note [The tree of sums], as CPU ranks do: the bits are those of a sharded model.
class PlainTrainer {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  PlainTrainer(const Named& params, int ranks, const PlainOptions& options = {});
  PlainTrainer(const torch::nn::Module& module, int ranks, const PlainOptions& options = {});

  // What an optimizer takes: the masters in the order of the module, tied ones once.
  const std::vector<at::Tensor>& parameters() const { return masters_; }

  // Runs backward of every rank's loss, one rank after the other, and reduces.
  void backward(const std::function<at::Tensor(int rank)>& loss);
  // The same without the reduce, as inside no_sync().
  void collect(const std::function<at::Tensor(int rank)>& loss);
  // Takes what autograd left in the model as a gradient of `rank`. Gradients of other `backward`s than the
  // first are reduced after those of the first.
  void take(int rank, size_t backward = 0);
  // Adds the ranks' sum, or average, of what was taken to the masters' .grad(). What no rank used has none.
  void reduce() { reduce({}); }
  // The same of parameters whose name `which` takes; the others' wait. Empty: all.
  void reduce(const std::function<bool(const std::string& name)>& which);
  // Forgets what was taken from `rank`.
  void drop(int rank);

  // Steps, drops the gradients, and lets the model compute with the new values.
  void step(torch::optim::Optimizer& optimizer);
  // The last two of these, for masters that were changed by hand.
  void load();

  State state() const;      // of the masters, under all their names
  State gradients() const;  // those that are there

 private:
  at::ScalarType reduce_type(size_t param) const;
  at::Tensor sum_over_ranks(std::vector<at::Tensor> terms, size_t param) const;

  int ranks_;
  PlainOptions options_;
  std::vector<std::vector<std::string>> names_;
  std::vector<at::Tensor> params_, masters_;
  std::vector<std::vector<std::vector<at::Tensor>>> taken_;  // [backward][rank][parameter]
};

// Sums along the tree of Note [The tree of sums].
at::Tensor tree_sum(const std::vector<at::Tensor>& terms);

}  // namespace fsdp::testing
