// no_sync(), which keeps gradients back, and keep_gathered(): scopes that change the actions of a cycle.
#include <algorithm>
#include <atomic>

#include "launch/in_call.h"
#include "runtime/engine.h"

namespace fsdp::detail {

CycleKind Engine::kind() const {
  const bool training = mode_ == Mode::train;
  return {.training = training,
          .trained = trained_,
          .held = training ? held_ : std::vector<bool>{},
          .held_in_row = training && gradients_.held_in_row(),
          .kept = kept_};
}

bool Engine::in_no_sync() const { return !no_sync_scopes_.empty(); }

bool Engine::holds_all() const {
  return std::any_of(no_sync_scopes_.begin(), no_sync_scopes_.end(),
                     [](const auto& one) { return one.second.whole && !one.second.rows_only; });
}

bool Engine::holds_rows() const {
  return std::any_of(no_sync_scopes_.begin(), no_sync_scopes_.end(),
                     [](const auto& one) { return one.second.rows_only; });
}

Engine::UnitScope Engine::unit_scope(const std::string& module_, const char* doing) const {
  UnitScope scope{.whole = module_.empty()};
  if (scope.whole) return scope;
  for (Unit* unit : units_under(module_, doing)) scope.units.push_back(unit->weak_from_this());
  return scope;
}

bool Engine::UnitScope::names(const Unit& unit) const {
  return std::any_of(units.begin(), units.end(),
                     [&](const std::weak_ptr<Unit>& one) { return one.lock().get() == &unit; });
}

namespace {

// One counter for all models, since one may take over the scopes of another.
int next_scope_number() {
  static std::atomic<int> next{0};
  return next++;
}

}  // namespace

int Engine::begin_no_sync(const NoSyncOptions& options_) {
  TORCH_CHECK(
      !mode,
      "fsdp: reproducible: no_sync() would change the order of sums; call backward() for each microbatch");
  TORCH_CHECK(!host || !host->stepper,
              "fsdp: no_sync() with AdamW::step_in_backward(), where every backward is a step");
  TORCH_CHECK(!options_.rows_only || options_.module.empty(), "fsdp: no_sync() with rows_only and module '",
              options_.module, "': rows are left apart for all units; leave one of them out");
  UnitScope scope = unit_scope(options_.module, "no_sync()");
  scope.rows_only = options_.rows_only;
  const int number = next_scope_number();
  no_sync_scopes_.emplace(number, std::move(scope));
  gradients_.sync = !holds_all() || mesh.all.size() == 1;
  return number;
}

void Engine::end_no_sync(int scope) {
  no_sync_scopes_.erase(scope);
  gradients_.sync = !holds_all() || mesh.all.size() == 1;
}

int Engine::begin_keep_gathered(const KeepGatheredOptions& options_) {
  end_failed_call();
  drop_failed_task();
  TORCH_CHECK(depth_ == 0 && task_ == -1, "fsdp: keep_gathered() inside a call of the model or a backward");
  TORCH_CHECK(
      !host || !host->stepper,
      "fsdp: keep_gathered() with AdamW::step_in_backward(), which writes parameters in every backward");
  const int number = next_scope_number();
  keep_scopes_.emplace(number, unit_scope(options_.module, "keep_gathered()"));
  return number;
}

void Engine::end_keep_gathered(int scope) {
  keep_scopes_.erase(scope);
  if (in_keep_gathered() || depth_ > 0 || task_ != -1) return;
  executor_.release_all();
  // If an exception ends the scope, ranks meet when the model is used again.
  owes_end_ = owes_end_ || std::uncaught_exceptions() > 0;
  if (!owes_end_) end_readings();
}

// The units that stay gathered; empty: none.
std::vector<bool> Engine::kept_units() const {
  std::vector<bool> kept;
  for (const auto& unit : units)
    kept.push_back(std::any_of(keep_scopes_.begin(), keep_scopes_.end(),
                               [&](const auto& one) { return one.second.whole || one.second.names(*unit); }));
  if (std::find(kept.begin(), kept.end(), true) == kept.end()) kept.clear();
  return kept;
}

// A plan says which units are reduced and which stay gathered, so cycles that differ in this are of different
// kinds. If scopes begin or end inside a cycle, it continues on demand.
void Engine::follow_scopes(bool between_tasks) {
  const bool alone = mesh.all.size() == 1;  // no ranks to keep gradients back from
  const bool rows = holds_rows() && mesh.column && !alone;
  const auto wanted = [&](const auto& unit) {
    return !alone && std::any_of(no_sync_scopes_.begin(), no_sync_scopes_.end(),
                                 [&](const auto& one) { return one.second.names(*unit); });
  };
  const std::vector<bool> kept = between_tasks ? kept_units() : kept_;
  bool changed = rows != gradients_.held_in_row() || kept != kept_;
  for (const auto& unit : units) changed = changed || unit->gradient.held != wanted(unit);
  if (!changed) return;
  if (between_tasks && in_cycle_ && backward_seen_) end_cycle();
  if (in_cycle_) schedule_.spoil();
  if (kept != kept_) executor_.release_all();
  kept_ = kept;
  gradients_.hold_in_row(rows);
  held_.clear();
  for (const auto& unit : units) held_.push_back(unit->gradient.held = wanted(unit));
  if (std::find(held_.begin(), held_.end(), true) == held_.end()) held_.clear();
}

// Like the end of a backward, with the reductions only: nothing of it is planned or recorded.
void Engine::synchronize_gradients() {
  check_between_steps("synchronize_gradients()");
  TORCH_CHECK(!mode,
              "fsdp: synchronize_gradients() in reproducible mode, where every backward is a microbatch "
              "of the step and no_sync() holds nothing back");
  TORCH_CHECK(!in_no_sync(), "fsdp: synchronize_gradients() inside no_sync(); end that scope first");
  const InCall call(world, "synchronize_gradients()");
  end_cycle();
  follow_scopes(/*between_tasks=*/true);
  schedule_.spoil();
  gradients_.begin_task(/*graph_stays=*/false);
  try {
    gradients_.at_task_end(nullptr);
    tell_gradients(/*backward_ended=*/true);
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
  note_memory();
}

}  // namespace fsdp::detail
