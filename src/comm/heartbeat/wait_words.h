// The sentences about a rank that others wait for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/heartbeat/beat.h"

namespace fsdp::detail {

// The state of a process of this host: "stopped", "stopped by a debugger", "waiting for a disk or a device",
// "gone"; "" if it runs or nothing is known.
std::string process_state(int64_t pid);

// "at step 13, outside the model, after its 12th backward, for 4 s; its last collective was all_reduce
// 'sum()'; its process is stopped". `state`: see process_state(). `silent`: how long it has shown no sign of
// life; 0: it does.
std::string where_it_is(const Beat& beat, const std::string& state, Milliseconds silent);
// The same without the activity, as sentences behind an error that has it: ". It is at step 13; its last
// collective was ...". "" if nothing is known.
std::string more_about(const Beat& beat, const std::string& state, Milliseconds silent);

// "12 s".
std::string whole_seconds(Milliseconds time);

// "14:02:10", `ago` before now, local time.
std::string time_of_day(Milliseconds ago);

}  // namespace fsdp::detail
