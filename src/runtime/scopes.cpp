// Scopes that change what a cycle does: no_sync(), which keeps gradients back, and keep_gathered().
#include <algorithm>

#include "runtime/engine.h"

namespace fsdp::detail {

CycleKind Engine::kind() const {
  const bool training = mode_ == Mode::train;
  return {.training = training,
          .trained = trained_,
          .held = training ? held_ : std::vector<bool>{},
          .held_in_row = training && gradients_.held_in_row(),
          .kept_gathered = keeps_};
}

bool Engine::in_no_sync() const {
  return no_sync_scopes_ > 0 || rows_only_scopes_ > 0 ||
         std::any_of(units.begin(), units.end(), [](const auto& unit) { return unit->no_sync_scopes > 0; });
}

void Engine::begin_no_sync(const void* key, const NoSyncOptions& scope) {
  TORCH_CHECK(
      !mode,
      "fsdp: reproducible: no_sync() would change the order of sums; call backward() for each microbatch");
  TORCH_CHECK(!host || !host->stepper,
              "fsdp: no_sync() with AdamW::step_in_backward(), where every backward is a step");
  TORCH_CHECK(!scope.rows_only || scope.module.empty(), "fsdp: no_sync() with rows_only and module '",
              scope.module, "': rows are left apart for all units; leave one of them out");
  if (scope.rows_only) {
    ++rows_only_scopes_;
  } else if (!scope.module.empty()) {
    for (Unit* unit : units_under(scope.module, "no_sync()")) {
      ++unit->no_sync_scopes;
      no_sync_units_[key].push_back(unit->weak_from_this());
    }
  } else {
    ++no_sync_scopes_;
    gradients_.sync = mesh.all.size() == 1;
  }
}

// Units may have other names by now, of a module around this one.
void Engine::end_no_sync(const void* key, const NoSyncOptions& scope) {
  if (scope.rows_only) {
    --rows_only_scopes_;
  } else if (const auto found = no_sync_units_.find(key); found != no_sync_units_.end()) {
    for (const auto& one : found->second)
      if (const auto unit = one.lock()) --unit->no_sync_scopes;
    no_sync_units_.erase(found);
  } else {
    --no_sync_scopes_;
    gradients_.sync = no_sync_scopes_ == 0 || mesh.all.size() == 1;
  }
}

void Engine::keep_gathered(bool on) {
  if (on) {
    end_failed_call();
    drop_failed_task();
  }
  TORCH_CHECK(!on || (depth_ == 0 && task_ == -1),
              "fsdp: keep_gathered() inside a call of the model or a backward");
  TORCH_CHECK(
      !on || !host || !host->stepper,
      "fsdp: keep_gathered() with AdamW::step_in_backward(), which writes parameters in every backward");
  keep_scopes_ += on ? 1 : -1;
  if (keep_scopes_ > 0 || depth_ > 0 || task_ != -1) return;
  executor_.release_all();
  // Where an exception ends the scope, ranks meet when the model is used again.
  owes_end_ = owes_end_ || std::uncaught_exceptions() > 0;
  if (!owes_end_) end_readings();
}

// A plan says which units are reduced and which stay, so a cycle with others is of another kind. Where scopes
// begin or end inside a cycle, it goes on on demand.
void Engine::follow_scopes(bool between_tasks) {
  const bool alone = mesh.all.size() == 1;  // nobody to keep gradients back from
  const bool rows = rows_only_scopes_ > 0 && mesh.column && !alone;
  const auto wanted = [&](const auto& unit) { return unit->no_sync_scopes > 0 && !alone; };
  const bool keeps = between_tasks ? keep_scopes_ > 0 : keeps_;
  bool changed = rows != gradients_.held_in_row() || keeps != keeps_;
  for (const auto& unit : units) changed = changed || unit->gradient.held != wanted(unit);
  if (!changed) return;
  if (between_tasks && in_cycle_ && backward_seen_) end_cycle();
  if (in_cycle_) schedule_.spoil();
  if (keeps != keeps_) executor_.release_all();
  keeps_ = keeps;
  gradients_.hold_in_row(rows);
  held_.clear();
  for (const auto& unit : units) held_.push_back(unit->gradient.held = wanted(unit));
  if (std::find(held_.begin(), held_.end(), true) == held_.end()) held_.clear();
}

}  // namespace fsdp::detail
