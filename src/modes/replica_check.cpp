#include "modes/replica_check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "base/hash.h"
#include "watch/quiet.h"

namespace fsdp::detail {

uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor here = tensor.cpu().contiguous();
  const auto* bytes = static_cast<const unsigned char*>(here.const_data_ptr());
  uint64_t hash = kHashStart;
  for (size_t i = 0; i < here.nbytes(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof word, here.nbytes() - i));
    hash = hash_on(hash, word);
    hash ^= hash >> 29;
  }
  return hash;
}

namespace {

// A region of which there are copies on the ranks that are equal modulo `apart`.
struct Copied {
  const Unit* unit;
  int apart;
  int64_t hash;
};

std::vector<Copied> copied(const std::vector<std::shared_ptr<Unit>>& units, const Mesh& mesh) {
  std::vector<Copied> found;
  for (const auto& unit : units) {
    if (unit->layout.ranks > 1 && !mesh.column) continue;
    for (const auto& region : unit->regions)
      found.push_back({unit.get(), unit->layout.ranks > 1 ? mesh.row.size() : 1,
                       static_cast<int64_t>(hash_of(region->shard))});
  }
  return found;
}

// "ranks 0, 1, 2 agree and differ from rank 3": the most first.
std::string told(const std::map<int64_t, std::vector<int>>& holders) {
  std::vector<std::vector<int>> groups;
  for (const auto& [hash, ranks] : holders) groups.push_back(ranks);
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() > b.size() : a < b; });
  std::string text;
  for (const auto& ranks : groups) {
    if (!text.empty()) text += &ranks == &groups[1] ? " from " : " and ";
    text += ranks.size() > 1 ? "ranks " : "rank ";
    for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
    if (&ranks == &groups[0]) text += ranks.size() > 1 ? " agree and differ" : " differs";
  }
  return text;
}

}  // namespace

void compare_copies(const std::vector<std::shared_ptr<Unit>>& units, Mesh& mesh) {
  const Quiet quiet;
  std::vector<Copied> mine = copied(units, mesh);
  if (mine.empty() || mesh.all.size() == 1) return;
  const auto n = static_cast<int64_t>(mine.size());
  const at::Tensor hashes = at::empty({n}, at::kLong);
  for (int64_t i = 0; i < n; ++i) hashes.mutable_data_ptr<int64_t>()[i] = mine[static_cast<size_t>(i)].hash;
  const auto device = mine.front().unit->regions.front()->shard.device();
  at::Tensor all = at::empty({n * mesh.all.size()}, hashes.options().device(device));
  mesh.all.all_gather(all, hashes.to(device), "copies").wait(mesh.all.timeout());
  all = all.cpu();
  const auto hash = [&](int rank, int64_t i) { return all.const_data_ptr<int64_t>()[rank * n + i]; };
  for (int64_t i = 0; i < n; ++i) {
    const Copied& one = mine[static_cast<size_t>(i)];
    for (int first = 0; first < one.apart; ++first) {
      std::map<int64_t, std::vector<int>> holders;
      for (int rank = first; rank < mesh.all.size(); rank += one.apart)
        holders[hash(rank, i)].push_back(rank);
      TORCH_CHECK(holders.size() == 1, "fsdp: unit '", one.unit->name, "': ", told(holders),
                  ", though all should hold the same values. A rank wrote its own into it, or its memory or "
                  "device is at fault; go on from a checkpoint, without that rank if it happens again.");
    }
  }
}

void broadcast_from_0(const at::Tensor& tensor, Comm& comm) {
  const bool plain = tensor.layout() == at::kStrided && !tensor.is_quantized();
  if (comm.size() == 1 || tensor.numel() == 0 || !plain) return;
  const at::Tensor copy = tensor.detach().contiguous().clone();
  comm.broadcast(copy.view({-1}).view(at::kByte), 0, "buffers").wait();
  tensor.detach().copy_(copy);
}

void sync_buffers(const torch::nn::Module& module, Comm& comm, BufferSync how) {
  const Quiet quiet;
  for (const at::Tensor& buffer : module.buffers()) {
    if (how == BufferSync::broadcast || !buffer.is_floating_point() || buffer.layout() != at::kStrided) {
      broadcast_from_0(buffer, comm);
      continue;
    }
    if (comm.size() == 1 || buffer.numel() == 0) continue;
    const at::Tensor copy = buffer.detach().contiguous().clone().view({-1});
    comm.all_reduce(copy, ReduceOp::average, "buffers").wait();
    buffer.detach().copy_(copy.view(buffer.sizes()));
  }
}

}  // namespace fsdp::detail
