// unshard() and reshard(): units gathered and released by hand.
#include "launch/in_call.h"
#include "runtime/engine.h"
#include "runtime/graph_task.h"
#include "watch/quiet.h"

namespace fsdp::detail {

// Between steps this first ends the previous cycle, whose end would release the units gathered here.
void Engine::unshard(const std::string& path) {
  const std::lock_guard lock(mutex);
  TORCH_CHECK(full_scopes_.empty(), "fsdp: unshard() inside full_params(), where all parameters are whole");
  const std::vector<Unit*> wanted = units_under(path, "unshard()");
  const InCall call(world, "unshard()");
  if (depth_ == 0 && graph_task() == -1) {
    end_failed_call();
    drop_failed_task();
    check_module();
    notice_writes();
    if (backward_seen_ || mode_ == Mode::eval) end_cycle();
  }
  for (Unit* unit : wanted) executor_.gather_ahead(*unit);
}

void Engine::reshard(const std::string& path) {
  const std::lock_guard lock(mutex);
  const Quiet quiet;
  for (Unit* unit : units_under(path, "reshard()"))
    if (unit->pins == 0) executor_.release(*unit);
}

}  // namespace fsdp::detail
