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

// Another model or optimizer of a run: a discriminator, an average of the weights, Muon beside AdamW.
struct RunPart {
  std::optional<ShardedModel> model = {};        // not set: the run's own model
  torch::optim::Optimizer* optimizer = nullptr;  // over parameters of that model
  torch::optim::LRScheduler* scheduler = nullptr;
  const OptimizerFormat* optimizer_format = nullptr;  // see RunState
};

// What makes up a run. What is null or empty is neither saved nor loaded.
struct RunState {
  ShardedModel model;
  torch::optim::Optimizer* optimizer = nullptr;  // over model.parameters()
  torch::optim::LRScheduler* scheduler = nullptr;
  GradScaler* scaler = nullptr;
  Sampler* sampler = nullptr;
  int64_t step = 0;                          // names the checkpoint
  std::map<std::string, Value> values = {};  // rank 0's are saved, and loaded on all ranks
  // Each rank's own, such as the state of its data loader. Loaded on the same rank of as many ranks; on
  // another number load() leaves them alone, and LoadReport::rank_values has those of all ranks.
  std::map<std::string, Value> rank_values = {};
  std::string model_config = {};  // JSON, for exports: what the model's shapes do not say
  // LibTorch's default generators. Loaded on as many ranks, each rank goes on where it was; on another number
  // each rank is seeded anew, by the seed rank 0 had, the step and the rank.
  bool rng = true;
  const OptimizerFormat* optimizer_format = nullptr;  // for an optimizer that is not LibTorch's or ours
  // By name: letters, digits, '-' and '_'. A checkpoint may have more parts than a run that loads it.
  std::map<std::string, RunPart> parts = {};
};

struct SaveOptions {
  int64_t keep_last = 0;   // number of newest checkpoints to keep, older ones are deleted; 0: all
  int64_t keep_every = 0;  // keep also those of steps that are a multiple of this; 0: none
  // Keep also the checkpoint with the lowest number of this name in `values`; empty: none.
  std::string keep_best = {};
  bool best_is_highest = false;  // the highest instead
  // Which parameters and buffers to save, with their moments, by name; empty: all. For adapters, say. Load
  // such a checkpoint with the same LoadOptions::filter, or strict = false.
  std::function<bool(const std::string& name)> filter = {};
  bool average_buffers = false;  // over the ranks, before they are saved; false: rank 0's are saved
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // for the slowest rank to write
};

// Saves the run as folder/step-<step> and moves folder/latest to it, which it never does before all is on
// disk: whatever fails, the checkpoint before stays the latest. Returns the path of the new one. `folder`
// must be shared by all ranks. Waits for saves in the background that go there (see BackgroundSaver).
// Collective, between steps. Throws the same on all ranks: IoError if a rank cannot write, CheckpointError if
// another run saves there or ranks do not share the folder; the run is as before, and can go on.
std::string save(const std::string& folder, const RunState& run, const SaveOptions& options = {});

struct LoadOptions {
  bool strict = true;         // false: load what fits; the report lists the rest
  bool weights_only = false;  // the models alone
  // The name in the checkpoint of a parameter or buffer of the model; empty: its own.
  std::function<std::string(const std::string& name)> rename = {};
  // Which parameters and buffers to load, by their names in the model; empty: all. Others keep their values.
  std::function<bool(const std::string& name)> filter = {};
  bool cast = false;  // to the model's dtypes, where they differ
  // Read and check all bytes before the model is changed, and then read them again. False: they are checked
  // while they are loaded; after an error the model refuses to be called until a load succeeds. Not set: true
  // for a model that was called before or whose optimizer has state, which would be lost.
  std::optional<bool> verify_first = {};
  // Where the latest checkpoint of a run's folder is damaged, load the newest older one that is whole.
  bool fall_back = false;
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // for the slowest rank to read
};

struct LoadReport {
  std::string path;                     // of the checkpoint
  int64_t step = 0;                     // also set in the run
  int ranks = 0;                        // that saved it
  std::vector<std::string> missing;     // in the model, not in the checkpoint
  std::vector<std::string> unexpected;  // in the checkpoint, not in the model
  std::vector<std::string> mismatched;  // sentences: shapes or dtypes that differ
  std::vector<std::string> optimizer;  // sentences: optimizers that were not loaded, and why; empty: all were
  std::vector<std::string> damaged;    // sentences: checkpoints that fall_back passed over
  // RunState::rank_values of every rank that saved, if the number of ranks is another; else empty.
  std::vector<std::map<std::string, Value>> rank_values;
  // Sentences: parameters (LoadOptions::cast) and moments that were loaded into another dtype. Moments have
  // the dtype that the optimizer makes them in.
  std::vector<std::string> cast;
};

// Loads what save() saved, on any number of ranks: each reads what it needs. `folder` is a run's folder, of
// which the latest is taken, one checkpoint, or a folder of safetensors that transformers, PyTorch's
// torch.distributed.checkpoint or export_safetensors wrote: docs/checkpoints.md. A config.json there must not
// contradict run.model_config. Sets run.step and run.values, unless weights_only. An optimizer without state
// stays as it is where the checkpoint has none. Collective, between steps. Throws the same on all ranks,
// before anything is changed (see verify_first): CheckpointError if there is no checkpoint, it is damaged, or
// it does not fit, with all that does not; IoError if it cannot be read. A captured step stays valid.
LoadReport load(const std::string& folder, RunState& run, const LoadOptions& options = {});

// Whether there is a checkpoint to load. Not collective: ask on one rank, or on all when nobody saves.
bool has_checkpoint(const std::string& folder);

}  // namespace fsdp
