// Waiting for what another rank writes into the store, with an eye on that rank.
#pragma once

#include <string>

#include "comm/backend.h"

namespace fsdp::detail {

// The value of `key`, once group rank `from` has written it. Throws RendezvousError naming that rank when it
// dies, does not come within the group's timeout, or the store is gone. `doing` is what they meet for.
std::string await_key(const GroupInfo& info, const std::string& key, int from,
                      const std::string& doing = "making a group");

void publish_key(const GroupInfo& info, const std::string& key, const std::string& value);

// "rank 3 (host h, pid 17)": the rank as people know it.
std::string name_of(const GroupInfo& info, int group_rank);

}  // namespace fsdp::detail
