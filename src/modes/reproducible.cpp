#include "modes/reproducible.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/util/Exception.h>

#include <bit>
#include <cmath>

#include "modes/replica_check.h"
#include "runtime/gradient_shards.h"
#include "watch/quiet.h"

namespace fsdp {

uint64_t microbatch_seed(uint64_t seed, int64_t step, int64_t microbatch) {
  uint64_t mixed = seed;
  for (const uint64_t part : {static_cast<uint64_t>(step), static_cast<uint64_t>(microbatch)}) {
    mixed += 0x9e3779b97f4a7c15ULL + part;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    mixed ^= mixed >> 31;
  }
  return mixed;
}

namespace detail {

namespace {

void check_options(const Reproducible& options, const World& world, const ShardOptions& all) {
  const auto power_of_two = [](int n) { return n > 0 && std::has_single_bit(static_cast<unsigned>(n)); };
  TORCH_CHECK(power_of_two(options.microbatches) && power_of_two(world.size()) &&
                  options.microbatches % world.size() == 0,
              "fsdp: reproducible: ", options.microbatches, " microbatches on ", world.size(),
              " ranks; both must be powers of two, and every rank must get as many as the others");
  TORCH_CHECK(!all.sync_batchnorm,
              "fsdp: reproducible: sync_batchnorm takes statistics over the ranks of one backward, which "
              "depend on how "
              "many there are");
  TORCH_CHECK(!all.gather_codec && !all.reduce_codec,
              "fsdp: reproducible: a codec may round by shard, which depends on the number of ranks");
  TORCH_CHECK(options.threads > 0, "fsdp: reproducible: ", options.threads, " threads");
}

void check_buffers(const torch::nn::Module& module) {
  for (const auto& buffer : module.named_buffers())
    TORCH_CHECK(buffer.key().find("running_mean") == std::string::npos, "fsdp: reproducible: '", buffer.key(),
                "' is updated in every microbatch, by each rank for its own; use a norm without running "
                "statistics (LayerNorm, GroupNorm, or BatchNorm with track_running_stats(false))");
}

at::Tensor sum_of(const at::Tensor& left, const at::Tensor& right) {
  if (!left.defined()) return right;
  return right.defined() ? left + right : left;
}

}  // namespace

Reproduction::Reproduction(const Reproducible& options, const World& world, const ShardOptions& all,
                           const torch::nn::Module& module)
    : options_(options),
      device_(world.device()),
      rank_(world.rank()),
      ranks_(world.size()),
      average_(all.gradients == ReduceOp::average) {
  check_options(options, world, all);
  check_buffers(module);
  at::set_num_threads(options.threads);
  if (!policy_of(device_).has_unordered_kernels) return;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Otherwise LibTorch fills every new tensor once more.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

// Several forwards before one backward use different random numbers.
void Reproduction::before_forward() {
  const uint64_t seed =
      microbatch_seed(options_.seed + static_cast<uint64_t>(forwards_++), step, done() + rank_);
  std::vector<at::Device> devices{at::kCPU};
  if (policy_of(device_).has_generator) devices.push_back(device_);
  for (const at::Device& device : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

void Reproduction::add(const UnitRegion& region, const at::Tensor& sum) {
  at::Tensor& now = sums_[&region].now;
  now = sum_of(now, sum);
}

bool Reproduction::end_backward(const Units& units, const Take& take) {
  const bool last = done() + ranks_ == options_.microbatches;
  for (const auto& unit : units) {
    for (const auto& region : unit->regions) {
      if (!region->spec.layout.trainable) continue;
      Sums& sums = sums_[region.get()];
      at::Tensor sum = std::exchange(sums.now, at::Tensor());
      size_t level = 0;
      for (int k = backwards_; (k & 1) != 0; k >>= 1, ++level)
        sum = sum_of(std::exchange(sums.partials[level], at::Tensor()), sum);
      if (!last) {
        if (sums.partials.size() <= level) sums.partials.resize(level + 1);
        sums.partials[level] = sum;
        continue;
      }
      take(*region, sum, average_ ? 1.0 / options_.microbatches : 1.0);
    }
  }
  forwards_ = 0;
  backwards_ = last ? 0 : backwards_ + 1;
  if (last) ++step;
  return last;
}

void Reproduction::drop_backward() {
  forwards_ = 0;
  for (auto& [region, sums] : sums_) sums.now = at::Tensor();
}

void Reproduction::restart(const Units& units) {
  drop_backward();
  backwards_ = 0;
  sums_.clear();
  for (const auto& unit : units)
    for (const auto& param : unit->params) param->gradient.used_by_any_rank = false;
}

void Reproduction::check_write() const {
  TORCH_CHECK(done() == 0, "fsdp: reproducible: parameters were written after ", done(), " of ",
              options_.microbatches,
              " microbatches of a step; call backward() for all of them, then the optimizer, or "
              "model.zero_grad() to start the step again");
}

int64_t Reproduction::held_bytes() const {
  int64_t bytes = 0;
  const auto count = [&](const at::Tensor& sum) {
    if (sum.defined()) bytes += static_cast<int64_t>(sum.nbytes());
  };
  for (const auto& [region, sums] : sums_) {
    count(sums.now);
    for (const at::Tensor& partial : sums.partials) count(partial);
  }
  return bytes;
}

// value(region, first element, elements) of every segment, by unit, region and segment. All ranks compute
// those of a unit that is whole on every rank; of other units every rank computes its own segments.
template <class Value>
std::vector<double> Reproduction::over_segments(const Units& units, Mesh& mesh, Value value) const {
  std::vector<double> ordered;
  for (const auto& unit : units) {
    const int here = options_.microbatches / unit->ranks();
    for (const auto& region : unit->regions) {
      if (!region->spec.layout.trainable) continue;
      const int64_t n = region->spec.layout.shard_numel / here;
      at::Tensor mine = at::empty({here}, at::kDouble);
      for (int i = 0; i < here; ++i) mine.mutable_data_ptr<double>()[i] = value(*region, i * n, n);
      if (unit->ranks() > 1) {
        const at::Tensor everyones = at::empty({options_.microbatches}, mine.options().device(device_));
        mesh.row.all_gather(everyones, mine.to(device_), "segments").wait(mesh.row.timeout());
        mine = everyones.cpu();
      }
      const double* data = mine.const_data_ptr<double>();
      ordered.insert(ordered.end(), data, data + options_.microbatches);
    }
  }
  return ordered;
}

double Reproduction::norm_sum(const Units& units, Mesh& mesh, double p) const {
  const auto norms = over_segments(units, mesh, [&](const UnitRegion& region, int64_t first, int64_t n) {
    if (!GradientShards::has_gradient(region) || n == 0) return 0.0;
    const auto type = region.gradient.shard.is_complex() ? at::kComplexDouble : at::kDouble;
    const double norm =
        at::linalg_vector_norm(region.gradient.shard.narrow(0, first, n), p, {}, false, type).item<double>();
    return std::isinf(p) ? norm : std::pow(norm, p);
  });
  double total = 0;
  for (const double one : norms) total = std::isinf(p) ? std::max(total, one) : total + one;
  return total;
}

uint64_t Reproduction::hash(const Units& units, Mesh& mesh) const {
  for (const auto& unit : units) unit->before_touch();  // a hash reads memory without an operator
  const auto hashes = over_segments(units, mesh, [&](const UnitRegion& region, int64_t first, int64_t n) {
    return static_cast<double>(hash_of(region.shard.narrow(0, first, n)) >> 12);  // exact in a double
  });
  uint64_t total = 0;
  for (const double one : hashes) total = microbatch_seed(total, static_cast<int64_t>(one), 0);
  return total;
}

}  // namespace detail
}  // namespace fsdp
