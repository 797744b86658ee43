// FSDP from scratch, on the collectives of fsdp::Comm alone: flatten, pad, shard, all-gather, reduce-scatter,
// step. docs/from_scratch.md walks through it.
//
//   09_from_scratch --ranks 2                two CPU ranks: processes of this machine
//
// It trains a small model twice, with the code below and with fsdp::fully_shard, and compares every bit.
// Expected output (figures differ):
//   from scratch: 5 units; each of 2 ranks keeps 13056 elements, and gathers into 8448
//   step  0  loss 1.076079, fully_shard 1.076079
//   step 19  loss 0.115827, fully_shard 0.115827
//   bit-equal to fully_shard: yes
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace {

// ---- The model: plain LibTorch, which knows nothing of ranks ----

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, width))),
        down(register_module("down", torch::nn::Linear(width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

torch::nn::Sequential make_net() {
  torch::manual_seed(1);  // the same values on every rank
  return torch::nn::Sequential(torch::nn::Linear(8, 64), Block(64), Block(64), Block(64),
                               torch::nn::Linear(64, 1));
}

// ---- FSDP ----

// Each parameter begins at a multiple of 64 elements of its flat buffer, which is 256 bytes in fp32: kernels
// and collectives load aligned memory faster.
constexpr int64_t kAlignment = 64;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The parameters of one block, which are gathered and reduced together.
struct Unit {
  torch::nn::AnyModule block;
  std::vector<torch::Tensor> params;  // the block's own tensors: readable while the unit is gathered
  std::vector<int64_t> offsets;       // of each parameter in the flat buffer
  int64_t numel = 0;                  // of the flat buffer, padding included
  torch::Tensor shard;                // [numel / W]: what this rank keeps, and what its optimizer updates
};

// The elements of parameter i in `flat`, a flat buffer of its unit.
torch::Tensor part(const torch::Tensor& flat, const Unit& unit, size_t i) {
  return flat.narrow(0, unit.offsets[i], unit.params[i].numel());
}

// Flatten, pad, shard.
Unit make_unit(const torch::nn::AnyModule& block, const fsdp::Comm& comm) {
  Unit unit;
  unit.block = block;
  unit.params = block.ptr()->parameters();
  for (const auto& param : unit.params) {
    unit.offsets.push_back(unit.numel);
    unit.numel += round_up(param.numel(), kAlignment);
  }
  // Shards are equally large: a collective moves the same number of elements to and from every rank.
  unit.numel = round_up(unit.numel, kAlignment * comm.size());

  const auto flat = torch::zeros({unit.numel});  // padding stays zero: its gradient is zero
  for (size_t i = 0; i < unit.params.size(); ++i) part(flat, unit, i).copy_(unit.params[i].flatten());
  const int64_t mine = unit.numel / comm.size();
  unit.shard = flat.narrow(0, comm.rank() * mine, mine).clone().requires_grad_();
  return unit;
}

class FromScratch {
 public:
  FromScratch(const torch::nn::Sequential& net, fsdp::Comm comm) : comm_(std::move(comm)) {
    const torch::NoGradGuard no_grad;
    int64_t largest = 0;
    for (const auto& block : *net) {
      units_.push_back(make_unit(block, comm_));
      largest = std::max(largest, units_.back().numel);
    }
    // All units share one slot, so an all-gather overwrites the unit before. Parameters become views of the
    // slot for good. This frees their own memory: from here on a rank has 1/W of the model, and one unit.
    slot_ = torch::empty({largest});
    for (Unit& unit : units_)
      for (size_t i = 0; i < unit.params.size(); ++i)
        unit.params[i].set_data(part(slot_, unit, i).view(unit.params[i].sizes()));
  }

  // The optimizer takes this rank's shards. So the moments it makes are sharded too.
  std::vector<torch::Tensor> parameters() const {
    std::vector<torch::Tensor> shards;
    for (const Unit& unit : units_) shards.push_back(unit.shard);
    return shards;
  }

  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i < units_.size(); ++i) {
      gather(units_[i]);
      x = units_[i].block.forward(x);
      // Autograd calls the hook when the gradient of x is complete: block i + 1 is done, block i comes next.
      if (x.requires_grad()) x.register_hook([this, i](const torch::Tensor&) { before_backward(i); });
    }
    return x;
  }

  void backward(const torch::Tensor& loss) {
    loss.backward();
    reduce(units_.front());  // no block comes next, whose hook would do it
    gathered_ = nullptr;     // the optimizer will change the shards, and the slot has the old values
  }

  // Every parameter whole, for the comparison.
  std::vector<torch::Tensor> full_parameters() {
    std::vector<torch::Tensor> whole;
    for (const Unit& unit : units_) {
      gather(unit);
      for (const auto& param : unit.params) whole.push_back(param.detach().clone());
    }
    return whole;
  }

  void print() const {
    int64_t kept = 0;
    for (const Unit& unit : units_) kept += unit.shard.numel();
    std::printf("from scratch: %zu units; each of %d ranks keeps %ld elements, and gathers into %ld\n",
                units_.size(), comm_.size(), kept, slot_.numel());
  }

 private:
  // All-gather: the shards of all ranks, side by side, are the flat buffer again.
  void gather(const Unit& unit) {
    if (gathered_ == &unit) return;  // backward begins with the block that forward ended with
    comm_.all_gather(slot_.narrow(0, 0, unit.numel), unit.shard.detach(), "parameters").wait();
    gathered_ = &unit;
  }

  // The graph saved tensors that are views of the slot, not copies. It reads them again in the backward of
  // block i, and by then they must have the values of block i again.
  void before_backward(size_t i) {
    if (i + 1 < units_.size()) reduce(units_[i + 1]);
    gather(units_[i]);
  }

  // Reduce-scatter: each rank gets the average over all ranks of the gradients of its shard.
  void reduce(Unit& unit) {
    const torch::NoGradGuard no_grad;
    const auto flat = torch::zeros({unit.numel});
    for (size_t i = 0; i < unit.params.size(); ++i) {
      part(flat, unit, i).copy_(unit.params[i].grad().flatten());
      unit.params[i].mutable_grad().reset();  // frees the whole gradient
    }
    const auto grad = torch::empty_like(unit.shard);
    comm_.reduce_scatter(grad, flat, fsdp::ReduceOp::average, /*scale=*/1.0, "gradients").wait();
    unit.shard.mutable_grad() = grad;
  }

  fsdp::Comm comm_;
  std::vector<Unit> units_;
  torch::Tensor slot_;              // [largest unit]: the parameters of one unit
  const Unit* gathered_ = nullptr;  // the unit whose parameters are in the slot
};

// ---- The same training, twice ----

constexpr int kSteps = 20;

struct Result {
  std::vector<torch::Tensor> params;  // whole
  std::vector<double> losses;
};

std::pair<torch::Tensor, torch::Tensor> draw_batch() {
  const auto x = torch::randn({16, 8});
  return {x, x.sum(1, /*keepdim=*/true).tanh()};
}

Result train_from_scratch(fsdp::World& world) {
  FromScratch model(make_net(), world.comm());
  if (world.rank() == 0) model.print();
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  torch::manual_seed(100 + world.rank());  // every rank has data of its own
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = draw_batch();
    const auto loss = torch::mse_loss(model.forward(x), y);
    model.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    result.losses.push_back(loss.item<double>());
  }
  result.params = model.full_parameters();
  return result;
}

Result train_with_fully_shard(fsdp::World& world) {
  auto net = make_net();
  auto model = fsdp::fully_shard(world, net);
  torch::optim::AdamW optimizer(model.parameters(), 1e-2);
  torch::manual_seed(100 + world.rank());
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    const auto [x, y] = draw_batch();
    const auto loss = torch::mse_loss(model(x), y);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    result.losses.push_back(loss.item<double>());
  }
  const auto whole = model.full_params();
  for (const auto& param : net->parameters()) result.params.push_back(param.detach().clone());
  return result;
}

// Equal bits, not just equal values: 0 and -0 differ.
bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::equal(a.view(torch::kInt), b.view(torch::kInt));
}

void compare(fsdp::World& world) {
  TORCH_CHECK(world.device().is_cpu(), "bits are compared on CPU ranks: use --ranks N, or FSDP_DEVICE=cpu");
  at::set_num_threads(1);
  const Result ours = train_from_scratch(world);
  const Result theirs = train_with_fully_shard(world);

  bool equal = ours.losses == theirs.losses && ours.params.size() == theirs.params.size();
  for (size_t i = 0; equal && i < ours.params.size(); ++i)
    equal = same_bits(ours.params[i], theirs.params[i]);
  const bool all_equal = world.sum(equal ? 0 : 1) == 0;  // all ranks say the same
  if (world.rank() == 0) {
    for (size_t step : {0, kSteps - 1})
      std::printf("step %2zu  loss %.6f, fully_shard %.6f\n", step, ours.losses[step], theirs.losses[step]);
    std::printf("bit-equal to fully_shard: %s\n", all_equal ? "yes" : "no");
  }
  TORCH_CHECK(all_equal, "the two trainings do not have the same bits");
}

}  // namespace

int main(int argc, char** argv) { return fsdp::run_main(argc, argv, compare); }
