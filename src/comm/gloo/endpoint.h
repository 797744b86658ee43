// The address at which a rank's gloo listens.
#pragma once

#include <string>
#include <vector>

#include "comm/backend.h"

namespace fsdp::detail {

// Either interfaces by name, or one numeric address.
struct GlooEndpoint {
  std::vector<std::string> interfaces;
  std::string address;

  std::string text() const;  // for messages
};

// The numeric address that this host would send from to reach `host`; empty if there is no route. Sends
// nothing.
std::string address_toward(const std::string& host);

// "eth0,eth1" -> {"eth0", "eth1"}
std::vector<std::string> interface_names(const std::string& list);

// The interfaces of GLOO_SOCKET_IFNAME if it is set, else the address from which this host reaches the store,
// that is MASTER_ADDR. Collective: the ranks meet in the store, and an error names one that does not come.
GlooEndpoint choose_endpoint(const GroupInfo& info);

}  // namespace fsdp::detail
