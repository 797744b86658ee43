// The address at which rank 0 serves the store, decided from host names and what they resolve to.
#pragma once

#include <string>
#include <vector>

namespace fsdp::detail {

// True if a numeric address ("127.0.1.1", "::1") reaches this machine only.
bool is_loopback(const std::string& address);

// True if the store for `host` must listen on all interfaces. Debian resolves a machine's own name to
// 127.0.1.1, while other machines resolve it to its address on the network: they could not reach a store that
// listens where rank 0 resolves the name to. True only if `host` is a name, not one for this machine only,
// that resolves to nothing but loopback (`resolved`: numeric addresses), and there may be other hosts.
bool must_listen_everywhere(const std::string& host, const std::vector<std::string>& resolved,
                            bool several_hosts);

}  // namespace fsdp::detail
