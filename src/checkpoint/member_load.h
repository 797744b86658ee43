// Loads a model and its optimizer from a checkpoint.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/members.h"
#include "checkpoint/optimizer_load.h"
#include "checkpoint/selection.h"
#include "checkpoint/tensor_files.h"

namespace fsdp::detail {

// Everything is prepared before anything is changed: prepare(), read_ahead(), rehearse(). Each adds the
// differences to the report. After that fill() and attach() change the model and its optimizer.
class MemberLoad {
 public:
  // `own`: the run's own member, since a part's optimizer may be over its model; null: this is the run's own.
  MemberLoad(const Member& member, const Manifest& manifest, const LoadOptions& options,
             const MemberLoad* own);
  MemberLoad(const MemberLoad&) = delete;
  MemberLoad& operator=(const MemberLoad&) = delete;

  // Reads no tensor.
  void prepare(LoadReport& report);
  // False if its optimizer does not fit the checkpoint on this rank. Then all ranks drop it.
  bool fits() const { return fits_; }
  void drop_optimizer();
  // Reads numbers of steps; with `all`, checks every byte that fill() would read.
  void read_ahead(TensorReader& reader, bool all) const;
  // Throws CheckpointError if the user's optimizer format does not find what it needs.
  void rehearse(LoadReport& report);
  void report_casts(LoadReport& report) const;
  void fill(TensorReader& reader);
  void attach();

  const Member& member() const { return member_; }
  // True if the checkpoint has no optimizer, and this one has done no step.
  bool starts_anew() const { return starts_anew_; }
  // Names of the tensors that are loaded.
  const std::set<std::string>& names() const { return names_; }
  // Tensors of the checkpoint that the model has.
  std::set<std::string> seen() const { return selection_ ? selection_->seen : names_; }

 private:
  void prepare_optimizer(const Json* saved, std::vector<std::string>& errors);

  Member member_;
  const Manifest& manifest_;
  const LoadOptions& options_;
  const MemberLoad* own_;
  std::optional<Selection> selection_;  // none: a part without a model
  std::optional<OptimizerLoad> optimizer_;
  Positions positions_;
  bool starts_anew_ = false;
  bool fits_ = true;
  std::set<std::string> names_;
};

}  // namespace fsdp::detail
