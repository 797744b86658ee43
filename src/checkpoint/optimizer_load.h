// Loads the state of an optimizer from a checkpoint or a state dict.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/optimizer_state.h"
#include "files/manifest.h"

namespace fsdp::detail {

inline constexpr const char* kNoOptimizer =
    "the checkpoint has no optimizer (LoadOptions::weights_only loads the model alone)";

// The ranks that saved the moments: errors of a checkpoint are the same on all ranks, those of a state dict
// are each rank's own.
enum class SavedBy : uint8_t { all_ranks, this_rank };

// Note [Loading an optimizer]
// A load prepares everything before it changes anything: prepare_groups(), prepare_moments(), reading the
// numbers of steps, make_states(). Each adds the differences to its `errors`. Then moments() are read, and
// attach() gives all of it to the optimizer. Moments that keep their dtype are read in place: the caller that
// fills them announces that first.
class OptimizerLoad {
 public:
  // The name under which a parameter of the model was saved; "": it is not loaded, and keeps its state.
  using SavedName = std::function<std::string(const std::string& name)>;

  // Throws c10::Error as OptimizerState does.
  OptimizerLoad(const Model& model, torch::optim::Optimizer& optimizer, const OptimizerFormat* format,
                SavedName saved_name, const std::string& prefix = "");

  const OptimizerState& state() const { return state_; }

  // Prepares options of groups from a checkpoint's `run`; without this call they stay. `loaded`: saved names
  // of all parameters of the model that are loaded.
  void prepare_groups(const Json& run, const std::set<std::string>& loaded, std::vector<std::string>& errors);
  // `saved`: the saved moments by name; dtype and shape count. An empty dtype is unknown.
  void prepare_moments(const std::map<std::string, SavedTensor>& saved, SavedBy by,
                       std::vector<std::string>& errors);
  // Numbers of steps, to be read before make_states().
  const std::vector<Held>& steps() const { return steps_; }
  void make_states(std::vector<std::string>& errors);

  const std::vector<Held>& moments() const { return moments_; }
  // Messages: moments that have another dtype here than in the checkpoint.
  const std::vector<std::string>& casts() const { return casts_; }
  void attach();

 private:
  // The saved moments of a part.
  struct SavedPart {
    const OptimizedPart* part = nullptr;
    std::string name;  // the name under which it was saved
    std::set<std::string> keys;
    at::Tensor steps;  // [], fp64
    bool has_steps = false;
  };
  struct NextState {
    const Optimized* of = nullptr;
    OptimizerFormat::Tensors now, tensors;
    std::vector<SavedPart> parts;
    std::unique_ptr<torch::optim::OptimizerParamState> made;  // null: it will have none
  };

  void take_options(const Json& groups, const std::set<std::string>& loaded,
                    std::vector<std::string>& errors);
  void add_part(NextState& next, SavedPart part, const std::map<std::string, SavedTensor>& saved,
                std::vector<std::string>& errors);
  void add_moment(NextState& next, const SavedPart& part, const std::string& key, const SavedTensor& saved,
                  std::vector<std::string>& errors);
  at::ScalarType dtype_here(const NextState& next, const SavedPart& part, const std::string& key,
                            const SavedTensor& saved) const;
  at::Tensor room_for(const NextState& next, const std::string& key, at::ScalarType dtype) const;
  OptimizerFormat::Numbers options_of(size_t group) const;

  // True if a part must be there: parts of other ranks are for them to check.
  bool counts(const OptimizedPart& part) const;
  void check_part(const NextState& next, const SavedPart& part, std::vector<std::string>& errors) const;
  void check_same_steps(const NextState& next, std::vector<std::string>& errors) const;
  void make_state(NextState& next, std::vector<std::string>& errors) const;

  OptimizerState state_;
  torch::optim::Optimizer& optimizer_;
  const bool format_is_ours_;  // the optimizer is one of the built-in ones
  SavedName saved_name_;
  SavedBy saved_by_ = SavedBy::all_ranks;
  std::vector<std::optional<OptimizerFormat::Numbers>> options_;  // by group; none: the group keeps its own
  std::vector<NextState> next_;
  std::vector<Held> steps_, moments_;
  std::vector<std::string> casts_;
};

}  // namespace fsdp::detail
