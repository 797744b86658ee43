// Waits for a key that another rank writes into the store, and watches that rank meanwhile.
#pragma once

#include <functional>
#include <string>

#include "comm/backend.h"

namespace fsdp::detail {

// The value of `key`, once group rank `from` has written it. Throws RendezvousError naming that rank if it
// dies or does not write within the group's timeout, or if the store is gone. `doing`: purpose, for errors.
// `look` is called now and then while the key is not there; it may throw RendezvousError.
std::string await_key(const GroupInfo& info, const std::string& key, int from,
                      const std::string& doing = "making a group", const std::function<void()>& look = {});

void publish_key(const GroupInfo& info, const std::string& key, const std::string& value);

// "rank 3 (host h, pid 17)": the rank as users know it.
std::string name_of(const GroupInfo& info, int group_rank);

}  // namespace fsdp::detail
