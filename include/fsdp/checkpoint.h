// Saving a run and resuming it, on any number of ranks, with any strategy.
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

// A value of the program's own; a tensor is saved whole.
using Value = std::variant<bool, int64_t, double, std::string, at::Tensor>;

// Another model or optimizer of a run, for example a discriminator, averaged weights, or Muon beside AdamW.
struct RunPart {
  std::optional<ShardedModel> model = {};        // not set: the run's own model
  torch::optim::Optimizer* optimizer = nullptr;  // over parameters of that model
  torch::optim::LRScheduler* scheduler = nullptr;
  const OptimizerFormat* optimizer_format = nullptr;  // see RunState
};

// The state of a run, which save() writes and load() restores. Null and empty fields are skipped.
struct RunState {
  ShardedModel model;
  torch::optim::Optimizer* optimizer = nullptr;  // over model.parameters()
  torch::optim::LRScheduler* scheduler = nullptr;
  GradScaler* scaler = nullptr;
  Sampler* sampler = nullptr;
  int64_t step = 0;                          // names the checkpoint
  std::map<std::string, Value> values = {};  // rank 0's are saved, and loaded on all ranks
  // Values of each rank, such as the state of its data loader. A run on the same number of ranks gets them
  // back; on another number load() does not change them, and LoadReport::rank_values has those of all ranks.
  std::map<std::string, Value> rank_values = {};
  std::string model_config = {};  // JSON for exports: configuration that shapes do not show
  // LibTorch's default generators. On the same number of ranks each rank resumes its own; on another number
  // each rank gets a new seed made of rank 0's seed, the step and the rank.
  bool rng = true;
  const OptimizerFormat* optimizer_format = nullptr;  // for an optimizer that is not LibTorch's or ours
  // Named parts (letters, digits, '-' and '_'). A checkpoint may have more parts than the run that loads it.
  std::map<std::string, RunPart> parts = {};
};

struct SaveOptions {
  int64_t keep_last = 0;   // number of newest checkpoints to keep; older ones are deleted; 0: all
  int64_t keep_every = 0;  // also keep steps that are a multiple of this; 0: none
  // Also keep the checkpoint with the lowest value of this name in `values`; empty: none.
  std::string keep_best = {};
  bool best_is_highest = false;  // with keep_best: keep the highest value instead
  // Returns whether to save a parameter or buffer, with its moments; empty: save all. For example to save
  // adapters alone. Load such a checkpoint with the same LoadOptions::filter, or with strict = false.
  std::function<bool(const std::string& name)> filter = {};
  bool average_buffers = false;  // true: save the average over the ranks; false: save rank 0's
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // limit for the slowest rank's write
};

// Saves the run as folder/step-<step>, then points folder/latest to it. `latest` changes last, after all data
// is on disk: after a failure it still names the previous checkpoint. Returns the path of the new one.
// `folder` must be shared by all ranks. Waits for background saves into that folder (see BackgroundSaver).
// Collective, between steps. Throws the same on all ranks: IoError if a rank cannot write, CheckpointError if
// another run saves there or ranks do not share the folder. The run is unchanged then, and can go on.
std::string save(const std::string& folder, const RunState& run, const SaveOptions& options = {});

struct LoadOptions {
  bool strict = true;         // false: load what fits; the report lists the rest
  bool weights_only = false;  // load the models only
  // Maps the name of a parameter or buffer of the model to its name in the checkpoint; empty: the same name.
  std::function<std::string(const std::string& name)> rename = {};
  // Returns whether to load a parameter or buffer, by its name in the model; empty: all. Others are kept.
  std::function<bool(const std::string& name)> filter = {};
  bool cast = false;  // convert to the model's dtypes where they differ
  // true: read and check all bytes before the model is changed, then read them again. false: check them while
  // loading; after an error the model refuses calls until a load succeeds. Not set: true if the model was
  // called before or its optimizer has state, which a failed load would destroy.
  std::optional<bool> verify_first = {};
  // If the latest checkpoint of a run's folder is damaged, load the newest older one that is whole.
  bool fall_back = false;
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // limit for the slowest rank's read
};

struct LoadReport {
  std::string path;                     // folder of the checkpoint
  int64_t step = 0;                     // also set in the run
  int ranks = 0;                        // number of ranks that saved it
  std::vector<std::string> missing;     // in the model, not in the checkpoint
  std::vector<std::string> unexpected;  // in the checkpoint, not in the model
  std::vector<std::string> mismatched;  // messages: shapes or dtypes that differ
  std::vector<std::string> optimizer;   // messages: optimizers that were not loaded, and why; empty: all were
  std::vector<std::string> damaged;     // messages: checkpoints that fall_back skipped
  // RunState::rank_values of every rank that saved, if the number of ranks differs; else empty.
  std::vector<std::map<std::string, Value>> rank_values;
  // Messages: parameters (LoadOptions::cast) and moments that were converted to another dtype. Moments get
  // the dtype in which the optimizer makes them.
  std::vector<std::string> cast;
};

// Loads what save() saved, on any number of ranks; each rank reads its parts only. `folder` is a run's folder
// (loads its latest), one checkpoint, or a folder of safetensors files that transformers, PyTorch's
// torch.distributed.checkpoint or export_safetensors wrote: see docs/checkpoints.md. A config.json there must
// not contradict run.model_config. Sets run.step and run.values, unless weights_only. Without optimizer state
// in the checkpoint, an optimizer without state stays as it is. Collective, between steps. Throws the same on
// all ranks, before any change (see verify_first): IoError if files cannot be read; CheckpointError if there
// is no checkpoint, it is damaged, or it does not fit, with all differences. Steps captured by capture() stay
// valid.
LoadReport load(const std::string& folder, RunState& run, const LoadOptions& options = {});

// Returns whether `folder` has a checkpoint. Not collective: ask on one rank, or on all while no rank saves.
bool has_checkpoint(const std::string& folder);

}  // namespace fsdp
