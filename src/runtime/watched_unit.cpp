// The observer's interface of units.
#include "runtime/divergence.h"
#include "runtime/engine.h"
#include "runtime/memory_report.h"

namespace fsdp::detail {

WatchedUnit& UnitRegion::owner() const { return *unit; }

std::string UnitRegion::name_at(int64_t offset) const {
  std::string name = unit->name();
  for (const auto& param : unit->params)
    if (&param->region() == this && param->placement.offset <= offset) name = param->names.front();
  return name;
}

std::recursive_mutex& Unit::mutex() { return engine->mutex; }
bool Unit::may_read() const { return engine->may_read(); }

// A unit is gathered if an outer operator, or one of another thread, has pinned it.
void Unit::use() {
  if (pins == 1)
    engine->use(*this);
  else
    engine->use_again(*this);
}

void Unit::before_touch() {
  for (const auto& region : regions)
    if (region->host) region->host->wait_for_updates();
}

void Unit::before_write() { engine->before_write(*this); }
void Unit::before_moment_write() {
  const std::lock_guard lock(mutex());
  engine->announce_change();
}
void Unit::check_write() const { engine->check_write(*this); }

std::exception_ptr Unit::explain(const std::exception_ptr& error) {
  const auto told = with_report(*engine, with_advice(error, engine->units));
  engine->fail(told);
  return told;
}

Comm* Unit::batch_norm_ranks() {
  return engine->options.sync_batchnorm && engine->mesh.all.size() > 1 ? &engine->mesh.all : nullptr;
}

}  // namespace fsdp::detail
