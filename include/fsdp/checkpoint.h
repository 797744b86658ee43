// Saving a run and going on with it: on any number of ranks, with any strategy.
//
// A run has a folder with a checkpoint per saved step and a file `latest`. docs/checkpoints.md shows how to
// save, resume and move to PyTorch; docs/checkpoint_format.md specifies the files.
#pragma once

#include <fsdp/grad_scaler.h>
#include <fsdp/optimizer_format.h>
#include <fsdp/sampler.h>
#include <fsdp/sharded_model.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace fsdp {

// A value of the user's; a tensor is saved whole.
using Value = std::variant<bool, int64_t, double, std::string, at::Tensor>;

// What makes up a run. What is null or empty is neither saved nor loaded.
struct RunState {
  ShardedModel model;
  torch::optim::Optimizer* optimizer = nullptr;  // over model.parameters()
  torch::optim::LRScheduler* scheduler = nullptr;
  GradScaler* scaler = nullptr;
  Sampler* sampler = nullptr;
  int64_t step = 0;                          // names the checkpoint
  std::map<std::string, Value> values = {};  // rank 0's are saved, and loaded on all ranks
  std::string model_config = {};             // JSON, for exports: what the model's shapes do not say
  // LibTorch's default generators. Loaded on as many ranks, each rank goes on where it was; on another number
  // each rank is seeded anew, by the seed rank 0 had, the step and the rank.
  bool rng = true;
  const OptimizerFormat* optimizer_format = nullptr;  // for an optimizer that is not LibTorch's or ours
};

struct SaveOptions {
  int64_t keep_last = 0;   // older checkpoints of the folder are deleted; 0: none is
  int64_t keep_every = 0;  // except those of steps that are a multiple of this; 0: no exception
  bool average_buffers =
      false;  // over the ranks, before they are saved; false: rank 0's are saved as they are
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // for the slowest rank to write
};

// Saves the run as folder/step-<step> and moves folder/latest to it, which it never does before all is on
// disk: whatever fails, the checkpoint before stays the latest. Returns the path of the new one. `folder`
// must be shared by all ranks. Collective, between steps. Throws the same on all ranks: IoError if a rank
// cannot write, CheckpointError if another run saves there or ranks do not share the folder; the run is as
// before, and can go on.
std::string save(const std::string& folder, const RunState& run, const SaveOptions& options = {});

struct LoadOptions {
  bool strict = true;         // false: load what fits; the report lists the rest
  bool weights_only = false;  // the model alone
  // The name in the checkpoint of a parameter or buffer of the model; empty: its own.
  std::function<std::string(const std::string& name)> rename = {};
  // Which parameters and buffers to load, by their names in the model; empty: all. Others keep their values.
  std::function<bool(const std::string& name)> filter = {};
  bool cast = false;  // to the model's dtypes, where they differ
  // Read and check all bytes before the model is changed, and then read them again. False: they are checked
  // while they are loaded; after an error the model refuses to be called until a load succeeds. Not set: true
  // for a model that was called before or whose optimizer has state, which would be lost.
  std::optional<bool> verify_first = {};
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // for the slowest rank to read
};

struct LoadReport {
  std::string path;                     // of the checkpoint
  int64_t step = 0;                     // also set in the run
  int ranks = 0;                        // that saved it
  std::vector<std::string> missing;     // in the model, not in the checkpoint
  std::vector<std::string> unexpected;  // in the checkpoint, not in the model
  std::vector<std::string> mismatched;  // sentences: shapes or dtypes that differ
  std::vector<std::string> optimizer;   // sentences: why nothing of the optimizer was loaded; empty: it was
};

// Loads what save() saved, on any number of ranks: each reads what it needs. `folder` is a run's folder, of
// which the latest is taken, one checkpoint, or a Hugging Face folder with safetensors, which has weights
// alone. Sets run.step and run.values, unless weights_only. Collective, between steps. Throws the same on all
// ranks, before anything is changed (see verify_first): CheckpointError if there is no checkpoint, it is
// damaged, or it does not fit, with all that does not; IoError if it cannot be read. A captured step stays
// valid.
LoadReport load(const std::string& folder, RunState& run, const LoadOptions& options = {});

// Whether there is a checkpoint to load. Not collective: ask on one rank, or on all when nobody saves.
bool has_checkpoint(const std::string& folder);

}  // namespace fsdp
