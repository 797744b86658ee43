#include "comm/gloo/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "kernels/cpu/tree_sum.h"

namespace fsdp::detail {

namespace {

constexpr size_t kSumWholeBelow = 32 * 1024;  // all_reduce: below this every rank sums all, not only its part

std::string gloo_signature(const OpInfo& info, const at::Tensor& tensor, const std::string& argument) {
  return std::string(info.op) + " '" + info.label + "' of " + std::to_string(tensor.numel()) +
         " elements of " + to_string(to_dtype(tensor.scalar_type())) + argument;
}

std::string scaled_by(double scale) { return scale == 1.0 ? "" : ", times " + std::to_string(scale); }

// The other ranks, each rank beginning with another one.
std::vector<int> others(const GlooGroup& group) {
  std::vector<int> ranks;
  for (int i = 1; i < group.size(); ++i) ranks.push_back((group.rank() + i) % group.size());
  return ranks;
}

// By rank: this rank's `own` values, and room for what the others send.
std::vector<at::Tensor> room_for_parts(const GlooGroup& group, const at::Tensor& own) {
  const at::Tensor room = at::empty({group.size() - 1, own.numel()}, own.options());
  std::vector<at::Tensor> parts(static_cast<size_t>(group.size()), own);
  int64_t row = 0;
  for (const int r : others(group)) parts[static_cast<size_t>(r)] = room.select(0, row++);
  return parts;
}

void sum_parts(const at::Tensor& output, const std::vector<at::Tensor>& parts, double scale) {
  std::vector<const void*> sources;
  for (const at::Tensor& part : parts) sources.push_back(part.const_data_ptr());
  tree_sum(output.data_ptr(), sources.data(), static_cast<int>(sources.size()),
           static_cast<size_t>(output.numel()), to_dtype(output.scalar_type()), scale);
}

// Every rank's part of a flat tensor; the last ones may be shorter or empty.
at::Tensor part_of(const at::Tensor& flat, int rank, int size) {
  constexpr int64_t kMultiple = 64;  // keeps parts on their own cache lines
  const int64_t length = (flat.numel() / size / kMultiple + 1) * kMultiple;
  const int64_t begin = std::min(flat.numel(), rank * length);
  return flat.narrow(0, begin, std::min(length, flat.numel() - begin));
}

void all_reduce_whole(GlooGroup& group, const at::Tensor& flat, double scale, Exchange& exchange) {
  const auto parts = room_for_parts(group, flat);
  for (const int r : others(group)) {
    group.recv(exchange, parts[static_cast<size_t>(r)], r);
    group.send(exchange, flat, r);
  }
  exchange.steps.emplace_back([flat, parts, scale](Exchange&) { sum_parts(flat, parts, scale); });
}

// Each rank sums its part, then sends the sum to the others. A rank's own part of the tensor is not sent
// before; the other parts are received only after their rank has what was there.
void all_reduce_parts(GlooGroup& group, const at::Tensor& flat, double scale, Exchange& exchange) {
  const auto part = [flat, size = group.size()](int r) { return part_of(flat, r, size); };
  const at::Tensor own = part(group.rank());
  const auto parts = room_for_parts(group, own);
  for (const int r : others(group)) {
    group.recv(exchange, parts[static_cast<size_t>(r)], r);
    group.send(exchange, part(r), r);
  }
  exchange.steps.emplace_back([&group, part, own, parts, scale](Exchange& next) {
    sum_parts(own, parts, scale);
    for (const int r : others(group)) {
      group.recv(next, part(r), r);
      group.send(next, own, r);
    }
  });
}

}  // namespace

// The shard is cast and copied into the slot, and sent from there.
WorkPtr gloo_all_gather(GlooGroup& group, const at::Tensor& slot, const at::Tensor& shard, OpInfo info) {
  std::string signature = gloo_signature(info, slot, "");
  return group.issue(std::move(info), std::move(signature), [&](Exchange& exchange) {
    const int64_t n = shard.numel();
    const auto part = [&](int r) { return slot.view({-1}).narrow(0, r * n, n); };
    const at::Tensor own = part(group.rank());
    if (own.const_data_ptr() != shard.const_data_ptr()) own.copy_(shard.view({-1}));
    for (const int r : others(group)) {
      group.recv(exchange, part(r), r);
      group.send(exchange, own, r);
    }
  });
}

WorkPtr gloo_reduce_scatter(GlooGroup& group, const at::Tensor& output, const at::Tensor& input, double scale,
                            OpInfo info) {
  std::string signature = gloo_signature(info, input, scaled_by(scale));
  return group.issue(std::move(info), std::move(signature), [&](Exchange& exchange) {
    const int64_t n = output.numel();
    const auto part = [&](int r) { return input.view({-1}).narrow(0, r * n, n); };
    const auto parts = room_for_parts(group, part(group.rank()));
    for (const int r : others(group)) {
      group.recv(exchange, parts[static_cast<size_t>(r)], r);
      group.send(exchange, part(r), r);
    }
    exchange.steps.emplace_back([output, parts, scale](Exchange&) { sum_parts(output, parts, scale); });
  });
}

WorkPtr gloo_all_reduce(GlooGroup& group, const at::Tensor& tensor, double scale, OpInfo info) {
  std::string signature = gloo_signature(info, tensor, scaled_by(scale));
  const auto reduce = tensor.nbytes() < kSumWholeBelow ? all_reduce_whole : all_reduce_parts;
  return group.issue(std::move(info), std::move(signature),
                     [&](Exchange& exchange) { reduce(group, tensor.view({-1}), scale, exchange); });
}

// Along a binomial tree: rank r, counted from the root, hears from r without its lowest bit.
WorkPtr gloo_broadcast(GlooGroup& group, const at::Tensor& tensor, int root, OpInfo info) {
  std::string signature = gloo_signature(info, tensor, ", from rank " + std::to_string(root));
  return group.issue(std::move(info), std::move(signature), [&](Exchange& exchange) {
    const int size = group.size();
    const int place = (group.rank() - root + size) % size;
    const auto rank_at = [root, size](int other) { return (other + root) % size; };
    const auto pass_on = [&group, tensor, place, rank_at, size](Exchange& next) {
      int bit = 1;
      while (bit < size && (place & bit) == 0) bit *= 2;
      for (bit /= 2; bit > 0; bit /= 2)
        if (place + bit < size) group.send(next, tensor, rank_at(place + bit));
    };
    if (place == 0) return pass_on(exchange);
    group.recv(exchange, tensor, rank_at(place & (place - 1)));
    exchange.steps.emplace_back(pass_on);
  });
}

WorkPtr gloo_barrier(GlooGroup& group, OpInfo info) {
  const at::Tensor token = at::zeros({group.size()}, at::TensorOptions().dtype(at::kByte));
  return gloo_all_gather(group, token, token.narrow(0, group.rank(), 1), std::move(info));
}

}  // namespace fsdp::detail
