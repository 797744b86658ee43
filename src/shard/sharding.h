// Sharding: the work of fully_shard(), from a module to an engine with shards.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "modes/reproducible.h"
#include "runtime/engine.h"
#include "shard/agreement.h"
#include "shard/choose_paths.h"
#include "shard/module_walk.h"
#include "shard/tape.h"
#include "watch/quiet.h"

namespace fsdp::detail {

class Sharding {
 public:
  Sharding(const World& world, torch::nn::Module& module, const ShardOptions& options)
      : world_(world), module_(module), options_(options), quiet_() {}

  std::shared_ptr<Engine> run();

 private:
  void make_engine(const Comm& all);
  void find_inner();
  void check_inner() const;
  void agree_on_tapes(Comm& all);
  std::shared_ptr<Tape> tape_of(const at::Tensor& tensor) const {
    return by_tape_ ? Tape::of(tensor) : nullptr;
  }
  void absorb_inner();
  std::vector<UnitDecl> units();
  std::vector<PlannedUnit> plan_units();
  void check_prefetch_lists(const std::vector<PlannedUnit>& planned) const;
  void set_prefetch_lists(const std::vector<PlannedUnit>& planned);
  void check_params(const std::vector<UnitDecl>& decls) const;
  void check_memory(const FoundParam& found) const;
  void bring_rest();
  std::shared_ptr<Unit> make_unit(const PlannedUnit& planned);
  UnitChoice choose(const PlannedUnit& planned);
  void choose_part(UnitChoice& choice, const UnitOptions& own, const std::string& name, bool whole);
  void make_regions(Unit& unit);
  void first_values(const UnitParam& param, const at::Tensor& whole) const;
  at::Tensor new_shard(const UnitRegion& region, at::Tensor& shared);
  at::Tensor host_copy(const UnitRegion& region) const;
  void make_shard(UnitRegion& region);
  std::unique_ptr<UnitParam> make_param(Unit& unit, const Placement& place);
  at::Tensor as_parameter(const at::Tensor& tensor) const;
  void move_into(UnitParam& param);
  void defer(const at::Tensor& tensor, std::function<void(const at::Tensor&)> takes);
  void replay();
  void keep_slice(UnitParam& param, const at::Tensor& value);
  void order_params();

  const World& world_;
  torch::nn::Module& module_;
  const ShardOptions& options_;
  const Quiet quiet_;
  const Policy policy_ = policy_of(world_.device());
  WalkedModule walked_;
  int row_ranks_ = 1;
  std::shared_ptr<Engine> engine_;
  const Reproduction* reproduction_ = nullptr;  // the engine's mode
  std::optional<PathChoice> paths_;
  std::vector<ParamId> taken_;  // ignored, or already in a unit
  std::vector<std::shared_ptr<Engine>> inner_;
  // Tensors of on_meta(), by tape, and takers of their values. See Note [Deferred initialisation].
  struct Deferred {
    std::vector<TapedTensor> wanted;
    std::vector<std::function<void(const at::Tensor&)>> takers;
  };
  std::map<std::shared_ptr<Tape>, Deferred> deferred_;
  bool by_tape_ = true;
};

// Makes `tensor` refer to `other`. A tensor without memory cannot do so by set_data().
void take_place(const at::Tensor& tensor, const at::Tensor& other);

}  // namespace fsdp::detail
