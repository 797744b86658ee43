// The key-value store at which ranks meet.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "launch/identity.h"

namespace fsdp::detail {

using StorePtr = c10::intrusive_ptr<::c10d::Store>;

// A listening socket, on the interface of `host` only. With `several_hosts` it listens on all interfaces if
// only this machine resolves the name `host` to loopback (must_listen_everywhere). Port 0 takes a free one.
// Throws RendezvousError.
struct Listener {
  Fd fd;
  int port = 0;
};
Listener listen_on(const std::string& host, int port, bool several_hosts = false);

StorePtr serve_store(const std::string& host, Listener listener, Milliseconds timeout);
StorePtr connect_store(const std::string& host, int port, Milliseconds timeout, const std::string& who);

// The store for `me`: in memory when alone, a server on rank 0 unless an agent serves it, else a client.
StorePtr open_store(const Identity& me, Milliseconds timeout);

}  // namespace fsdp::detail
