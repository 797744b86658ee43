#include "modes/replica_check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "base/hash.h"
#include "base/log.h"
#include "runtime/engine.h"
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

// A region with copies: on all ranks, or on those with the same place in their row.
struct Copied {
  const Unit* unit;
  bool on_all;
  int64_t hash;
};

std::vector<Copied> copied(const std::vector<std::shared_ptr<Unit>>& units, const Mesh& mesh) {
  std::vector<Copied> found;
  for (const auto& unit : units) {
    if (unit->ranks() > 1 && !mesh.column) continue;
    unit->before_touch();  // a hash reads memory without an operator
    for (const auto& region : unit->regions)
      found.push_back({unit.get(), unit->ranks() == 1, static_cast<int64_t>(hash_of(region->shard))});
  }
  return found;
}

// "ranks 0, 1, 2 agree and differ from rank 3": the largest group first.
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
  const auto device = mine.front().unit->regions.front()->home.device();
  at::Tensor all = at::empty({n * mesh.all.size()}, hashes.options().device(device));
  mesh.all.all_gather(all, hashes.to(device), "copies").wait(mesh.all.timeout());
  all = all.cpu();
  const auto hash = [&](int rank, int64_t i) { return all.const_data_ptr<int64_t>()[rank * n + i]; };
  for (int64_t i = 0; i < n; ++i) {
    const Copied& one = mine[static_cast<size_t>(i)];
    std::map<int, std::map<int64_t, std::vector<int>>> by_place;
    for (int rank = 0; rank < mesh.all.size(); ++rank)
      by_place[one.on_all ? 0 : mesh.places[static_cast<size_t>(rank)]][hash(rank, i)].push_back(rank);
    for (const auto& [place, holders] : by_place) {
      TORCH_CHECK(holders.size() == 1, "fsdp: unit '", one.unit->name(), "': ", told(holders),
                  ", though all should hold the same values. A rank wrote its own into it, or its memory or "
                  "device is at fault; go on from a checkpoint, without that rank if it happens again.");
    }
  }
}

std::function<void(Engine&)> check_replicas_every(int64_t backwards) {
  return [backwards, done = int64_t{0}](Engine& engine) mutable {
    if (++done % backwards != 0) return;
    compare_copies(engine.units, engine.mesh);
    if (!engine.mode) return;
    const uint64_t hash = engine.mode->hash(engine.units, engine.mesh);
    if (engine.world.rank() == 0)
      log_info("step " + std::to_string(engine.mode->step) + ": parameters have hash " +
               std::to_string(hash));
  };
}

}  // namespace fsdp::detail
