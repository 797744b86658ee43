#include "checkpoint/member_load.h"

#include <fsdp/error.h>

#include <stdexcept>

namespace fsdp::detail {

namespace {

// Files of other programs have no groups, and may have lost the numbers of steps.
void check_foreign(const Json& run, std::vector<std::string>& errors) {
  if (run.contains("optimizer") && JsonObject(run.at("optimizer"), "the saved optimizer").flag("steps_lost"))
    errors.emplace_back(
        "the files have moments whose steps are all 0: PyTorch writes scalars as 0 when it consolidates. "
        "Load its folder 'sharded', or the weights alone (LoadOptions::weights_only)");
}

}  // namespace

MemberLoad::MemberLoad(const Member& member, const Manifest& manifest, const LoadOptions& options,
                       const MemberLoad* own)
    : member_(member), manifest_(manifest), options_(options), own_(own) {}

void MemberLoad::prepare(LoadReport& report) {
  TORCH_CHECK(!member_.model->in_keep_gathered(),
              "fsdp: load() inside keep_gathered(): the model would go on with "
              "what it has gathered. Load after the scope has ended");
  if (member_.brings_model) {
    selection_.emplace(manifest_, member_.prefix, *member_.model, options_, report);
    names_ = selection_->names();
  }
  if (options_.weights_only) return;
  const Json* saved = saved_json(manifest_, member_);
  if (member_.optimizer != nullptr) prepare_optimizer(saved, report.optimizer);
  if (saved != nullptr) positions_ = positions_of(member_, *saved);
}

// An optimizer that has done no step starts afresh if none was saved, as after an import. One that has done
// steps would continue with moments of other weights.
void MemberLoad::prepare_optimizer(const Json* saved, std::vector<std::string>& errors) {
  const size_t before = errors.size();
  const bool fresh = member_.optimizer->state().empty();
  const bool any_saved = manifest_.run.contains("optimizer") || manifest_.run.contains("parts");
  const Selection& selection = selection_ ? *selection_ : *own_->selection_;
  optimizer_.emplace(
      *member_.model, *member_.optimizer, member_.format,
      [&selection](const std::string& name) { return selection.saved_name(name); }, member_.prefix);
  if (manifest_.foreign)
    check_foreign(manifest_.run, errors);
  else if (saved != nullptr && saved->contains("optimizer"))
    optimizer_->prepare_groups(*saved, selection.saved_names(), errors);
  else if (fresh && (member_.name.empty() || !any_saved))
    starts_anew_ = true;
  else
    errors.emplace_back(kNoOptimizer);
  if (errors.size() == before && !starts_anew_)
    optimizer_->prepare_moments(manifest_.tensors, SavedBy::all_ranks, errors);
  // Files of other programs have no list of optimizers: their tensors show it.
  if (manifest_.foreign && errors.size() == before && optimizer_->moments().empty() &&
      optimizer_->steps().empty()) {
    starts_anew_ = fresh;
    if (!fresh) errors.emplace_back(kNoOptimizer);
  }
  for (size_t i = before; i < errors.size() && !member_.name.empty(); ++i)
    errors[i] = "part '" + member_.name + "': " + errors[i];
  fits_ = errors.size() == before;
  if (starts_anew_) optimizer_.reset();
}

void MemberLoad::drop_optimizer() {
  optimizer_.reset();
  positions_.scheduler_steps.reset();  // its learning rates are the optimizer's
  fits_ = false;
}

void MemberLoad::read_ahead(TensorReader& reader, bool all) const {
  if (optimizer_) reader.fill(optimizer_->steps());
  if (!all) return;
  if (selection_) reader.verify(selection_->params);
  if (selection_)
    for (const auto& [held, tensor] : selection_->own) reader.verify({held});
  if (optimizer_) reader.verify(optimizer_->moments());
}

void MemberLoad::rehearse(LoadReport& report) {
  if (!optimizer_) return;
  const size_t before = report.optimizer.size();
  try {
    optimizer_->make_states(report.optimizer);
  } catch (const std::out_of_range& error) {  // thrown by a format's at()
    throw CheckpointError("the optimizer in " + report.path + " lacks what its format needs (" +
                          error.what() +
                          "); nothing was loaded. LoadOptions::weights_only loads the model alone");
  }
  fits_ = report.optimizer.size() == before;
}

void MemberLoad::report_casts(LoadReport& report) const {
  if (optimizer_)
    report.cast.insert(report.cast.end(), optimizer_->casts().begin(), optimizer_->casts().end());
}

void MemberLoad::fill(TensorReader& reader) {
  if (selection_) {
    reader.fill(selection_->params);
    for (auto& [held, tensor] : selection_->own) {
      Held fresh = held;
      fresh.flat = held.flat.clone();  // `flat` may be the tensor's own memory
      reader.fill({fresh});
      const at::Tensor values = held.real_pairs ? fresh.flat.view(at::kComplexDouble) : fresh.flat;
      tensor.detach().copy_(values.view(tensor.sizes()));
    }
  }
  if (optimizer_) reader.fill(optimizer_->moments());
}

void MemberLoad::attach() {
  if (options_.weights_only) return;
  if (optimizer_) optimizer_->attach();
  set_positions(member_, positions_);
}

}  // namespace fsdp::detail
