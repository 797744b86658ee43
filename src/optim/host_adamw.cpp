#include "optim/host_adamw.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_zero.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "base/worker_pool.h"
#include "optim/adamw_state.h"
#include "runtime/unit.h"

namespace fsdp::detail {

namespace {

constexpr size_t kAtOnce = size_t{1} << 16;  // elements of one task: a MiB of arrays

bool lies_as(const at::Tensor& tensor, const at::Tensor& param) {
  return tensor.is_cpu() && tensor.sizes() == param.sizes() && tensor.strides() == param.strides();
}

template <class T>
T* moved(T* array, size_t elements, size_t bytes) {
  if (array == nullptr) return nullptr;
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(array) + elements * bytes);
}

}  // namespace

bool fits_host_adamw(const at::Tensor& param, const at::Tensor& grad,
                     const torch::optim::AdamWParamState& state) {
  const at::ScalarType type = state.exp_avg().scalar_type();
  const at::Tensor& maximum = state.max_exp_avg_sq();
  return param.is_cpu() && param.scalar_type() == at::kFloat && param.is_non_overlapping_and_dense() &&
         grad.scalar_type() == at::kFloat && grad.layout() == at::kStrided && lies_as(grad, param) &&
         (type == at::kBFloat16 || type == at::kFloat) && lies_as(state.exp_avg(), param) &&
         state.exp_avg_sq().scalar_type() == type && lies_as(state.exp_avg_sq(), param) &&
         (!maximum.defined() || (maximum.scalar_type() == type && lies_as(maximum, param)));
}

namespace {

// The memory where an update of `param` writes the copy for the upload; null: the copy is made again later.
uint16_t* copy_of(const at::Tensor& param, const HostShard* host) {
  if (host == nullptr || host->stale() || host->copy().scalar_type() != at::kBFloat16) return nullptr;
  return static_cast<uint16_t*>(host->copy().mutable_data_ptr()) + param.storage_offset();
}

}  // namespace

void HostAdamW::add(const at::Tensor& param, const at::Tensor& gradient, torch::optim::AdamWParamState& state,
                    const torch::optim::AdamWOptions& options, UnitRegion* region, float factor) {
  HostShard* host = region != nullptr ? region->host.get() : nullptr;
  // Writes to gradients of ours wait for the update. The program may write to others at once, so clone them.
  const at::Tensor grad = host == nullptr || tag_of(gradient) != nullptr ? gradient : gradient.clone();
  if (host != nullptr) {
    host->wait_for_updates();
    for (at::Tensor* moment : {&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()})
      if (moment->defined()) *moment = watched_moment(*region, *moment);  // its readers wait for the update
  }
  Update& update = updates_[host];
  const auto& [beta1, beta2] = options.betas();
  const bool keeps_maximum = options.amsgrad() && state.max_exp_avg_sq().defined();
  uint16_t* copy = copy_of(param, host);
  AdamWNumbers numbers =
      adamw_numbers(options.lr(), beta1, beta2, options.eps(), options.weight_decay(), state.step());
  numbers.factor = factor;
  update.copies = copy != nullptr;
  update.pieces.push_back({.arrays = {.param = static_cast<float*>(param.data_ptr()),
                                      .grad = static_cast<const float*>(grad.const_data_ptr()),
                                      .average = state.exp_avg().data_ptr(),
                                      .square = state.exp_avg_sq().data_ptr(),
                                      .maximum = keeps_maximum ? state.max_exp_avg_sq().data_ptr() : nullptr,
                                      .copy = copy},
                           .count = static_cast<size_t>(param.numel()),
                           .numbers = numbers,
                           .narrow = state.exp_avg().scalar_type() == at::kBFloat16});
  for (const at::Tensor& tensor :
       {param.detach(), grad, state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()})
    update.kept.push_back(tensor);
  written_.push_back(param.detach().as_strided({0}, {1}));
}

void HostAdamW::touch(const at::Tensor& param) { written_.push_back(param.detach()); }

void HostAdamW::flush() {
  if (written_.empty()) return;
  for (auto& [host, update] : updates_)  // since it was added, an operator may have written another slice
    update.copies = update.copies && host != nullptr && !host->stale();
  // Pointers bypass operators: this operator, which changes nothing, tells the observer of the write.
  at::_foreach_zero_(written_);
  const int threads = at::get_num_threads();
  std::vector<HostShard*> order;
  for (auto& [host, update] : updates_) {
    if (host == nullptr)
      run(update.pieces, threads);
    else
      order.push_back(host);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->order() < b->order(); });
  for (HostShard* host : order) {
    if (updates_.at(host).copies) host->copy_is_promised();
    host->promises().add(host->key(),
                         [update = std::move(updates_.at(host)), threads] { run(update.pieces, threads); });
  }
  updates_.clear();
  written_.clear();
}

void HostAdamW::promise(const std::shared_ptr<c10::Event>& arrived) {
  const int threads = std::max(1, at::get_num_threads() - 1);  // one drives the device
  for (auto& [host, update] : updates_) {
    if (!update.copies) host->copy_is_old();
    // Forward will need this region before those that backward finished earlier.
    host->promises().add_first(
        host->key(),
        [shard = host, update = std::move(update), arrived, threads] {
          const c10::DeviceGuard device(arrived->device());  // a thread begins on the first one
          arrived->synchronize();
          shard->wait_for_uploads();
          run(update.pieces, threads);
        },
        [arrived] {
          const c10::DeviceGuard device(arrived->device());
          return arrived->query();
        });
  }
  updates_.clear();
  written_.clear();
}

void HostAdamW::run(const std::vector<Piece>& pieces, int threads) {
  struct Chunk {
    const Piece* piece;
    size_t first;
  };
  std::vector<Chunk> chunks;
  for (const Piece& piece : pieces)
    for (size_t first = 0; first < piece.count; first += kAtOnce) chunks.push_back({&piece, first});
  WorkerPool::shared().run(chunks.size(), threads, [&](size_t i) {
    const auto& [piece, first] = chunks[i];
    const size_t bytes = piece->narrow ? 2 : 4;
    const AdamWArrays& all = piece->arrays;
    adamw({.param = moved(all.param, first, 4),
           .grad = moved(all.grad, first, 4),
           .average = moved(static_cast<char*>(all.average), first, bytes),
           .square = moved(static_cast<char*>(all.square), first, bytes),
           .maximum = moved(static_cast<char*>(all.maximum), first, bytes),
           .copy = moved(all.copy, first, 2)},
          std::min(kAtOnce, piece->count - first), piece->numbers, piece->narrow);
  });
}

}  // namespace fsdp::detail
