// Model: the parts of a sharded model that do not depend on what it is doing.
#pragma once

#include <fsdp/insight.h>
#include <fsdp/options.h>
#include <fsdp/world.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "launch/near_device.h"
#include "runtime/mesh.h"
#include "runtime/policy.h"
#include "runtime/step_mode.h"
#include "runtime/unit.h"
#include "transfer/host_side.h"

namespace fsdp::detail {

class Engine;

// A parameter as it is registered in a module. `tensor` is only compared.
struct RegisteredParam {
  std::string name;
  const c10::TensorImpl* tensor;
};
using RegisteredParams = std::vector<RegisteredParam>;

// The state that optimizers, checkpoints and reports use. The engine adds what runs, and when.
struct Model {
  Model(const World& world_, torch::nn::Module& module_, const ShardOptions& options_, Mesh mesh_,
        std::unique_ptr<StepMode> mode_)
      : world(world_),
        module_owner(module_.shared_from_this()),
        module(module_),
        options(options_),
        mesh(std::move(mesh_)),
        mode(std::move(mode_)) {
    const Offload& offload = options.offload;
    if ((offload.params || offload.gradients || offload.optimizer) && policy_of(world.device()).can_offload)
      host = std::make_unique<HostSide>(world.device(), node_near(world.device()));
  }
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // `optimizer_bytes`: bytes of an optimizer's state.
  virtual MemoryStats memory_stats(int64_t optimizer_bytes) const = 0;
  // Throws c10::Error unless the model is between steps; `doing` begins the message. Ends a call or a
  // backward that failed. Collective.
  virtual void check_between_steps(const char* doing) = 0;
  virtual bool in_no_sync() const = 0;
  virtual bool in_keep_gathered() const = 0;

  const World world;
  const std::shared_ptr<torch::nn::Module> module_owner;  // the last handle may be that of an inner model
  torch::nn::Module& module;
  const ShardOptions options;
  Mesh mesh;
  std::unique_ptr<HostSide> host = {};   // null: no CPU offload
  const std::unique_ptr<StepMode> mode;  // null: every backward is a step
  std::recursive_mutex mutex;            // guards pins and loans: a forward may have threads of its own
  std::vector<std::shared_ptr<Unit>> units;
  std::vector<UnitParam*> params;  // in order of definition
  RegisteredParams registered;     // in the module, when it was sharded
  bool called = false;             // it was called, so its values may be trained ones
  bool tells_gradients = false;    // on_gradient() is set
  std::string half_loaded = {};    // the reason why its values are unusable; empty: they are usable
  // Called once, before shards are written: a background save may still read them, and moments.
  std::function<void()> before_change = {};
  void announce_change() {
    if (before_change) std::exchange(before_change, {})();
  }
};

// All of a region, in the shard's dtype, in memory of its own. With `rank0_only` it is empty on other ranks,
// which send their shards. Call Unit::claim_shards() afterwards. Collective.
at::Tensor gather_master(Model& model, UnitRegion& region, bool rank0_only);

// The model that has the units now: an outer one may have taken them over.
Model& model_of(const std::shared_ptr<Engine>& engine);

}  // namespace fsdp::detail
