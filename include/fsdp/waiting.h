// Ranks that wait for another one: which it is, and where it is. For logs, live lines and status pages.
#pragma once

#include <fsdp/world.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace fsdp {

// Every rank of a world shows the others the step and the call it is in, and its last collective. A rank that
// waits longer than max(2 s, 3 steps) logs which rank it waits for and where that rank is; of several ranks
// that wait, the lowest logs. It logs again rarely, and once more when the wait is over. Before the second
// step it waits 10 s. Ranks that are threads of one process do not take part.

// This rank begins `step`. Without this call, steps are counted by backwards, and messages name no step.
void note_step(const World& world, int64_t step);

// The time after which a rank that waits for another ends with an error: in World::comm(), World::mean() and
// World::sum(), save() and load(). Default: FSDP_TIMEOUT, else 300 s. Call it before those. A rank of a
// save() or load() that still reads or writes may take longer: see SaveOptions::timeout. Models and groups of
// your own have CommOptions::timeout.
void set_wait_timeout(const World& world, std::chrono::milliseconds timeout);

// Gets waiting_for()'s text and how long this rank has waited; "" when the wait is over.
using ShowWait = std::function<void(const std::string& text, std::chrono::milliseconds waited)>;
// Calls `show` when this rank has waited that long, when it waits for another rank than before, and when the
// wait is over. `show` runs on a thread of the library, one call at a time; after on_waiting(world, nullptr)
// returns it is not called again.
void on_waiting(const World& world, ShowWait show);

// "rank 2 (host node1, pid 17), which is at step 13, outside the model, after its 12th backward, ...", if
// this rank has waited for it that long; else "". From any thread.
std::string waiting_for(const World& world);

}  // namespace fsdp
