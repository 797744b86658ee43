// Chooses the backend of a group.
#include <c10/util/Exception.h>

#include <algorithm>

#include "comm/c10d/c10d.h"
#include "comm/gloo/gloo.h"
#include "comm/local/local.h"
#include "comm/nccl/nccl.h"
#include "comm/shm/shm.h"
#include "comm/state.h"

namespace fsdp::detail {

namespace {

bool all_peers(const GroupInfo& info, auto same) {
  return std::all_of(info.peers.begin(), info.peers.end(),
                     [&](const Peer& peer) { return same(peer, info.peers.front()); });
}

bool one_host(const GroupInfo& info) {
  return all_peers(info, [](const Peer& a, const Peer& b) { return a.host_id == b.host_id; });
}

bool one_process(const GroupInfo& info) {
  return one_host(info) && all_peers(info, [](const Peer& a, const Peer& b) { return a.pid == b.pid; });
}

BackendKind choose(const GroupInfo& info) {
  if (info.options.backend != BackendKind::automatic) return info.options.backend;
  if (info.options.c10d) return BackendKind::c10d;
  if (info.device.is_cuda()) return BackendKind::nccl;
  TORCH_CHECK(info.device.is_cpu(), "fsdp: no backend moves data of device ", info.device,
              "; give CommOptions::c10d a factory for one that does");
  if (one_process(info)) return BackendKind::local;
  if (one_host(info)) return BackendKind::shm;
  TORCH_CHECK(gloo_available(), "fsdp: the CPU ranks of this group are on several hosts (",
              info.peers.front().hostname, ", ", info.peers.back().hostname, ", ...), and ",
              gloo_unavailable_reason());
  return BackendKind::gloo;
}

}  // namespace

BackendPtr make_backend(const GroupInfo& info) {
  switch (choose(info)) {
    case BackendKind::local:
      TORCH_CHECK(local_available(), "fsdp: this build has no local backend");
      TORCH_CHECK(one_process(info),
                  "fsdp: the local backend is for ranks that are threads of one process; use shm");
      return make_local(info);
    case BackendKind::shm:
      TORCH_CHECK(shm_available(), "fsdp: this build has no shm backend");
      TORCH_CHECK(one_host(info), "fsdp: the shm backend is for ranks of one host, user and pid namespace");
      return make_shm(info);
    case BackendKind::nccl:
      TORCH_CHECK(nccl_available(), "fsdp: ", nccl_unavailable_reason());
      return make_nccl(info);
    case BackendKind::c10d:
      TORCH_CHECK(c10d_available(), "fsdp: this build has no c10d adapter");
      TORCH_CHECK(info.options.c10d,
                  "fsdp: BackendKind::c10d needs CommOptions::c10d, a function that makes the backend");
      return make_c10d(info);
    case BackendKind::gloo:
      TORCH_CHECK(gloo_available(), "fsdp: ", gloo_unavailable_reason());
      return make_gloo(info);
    case BackendKind::automatic:
      break;
  }
  TORCH_CHECK(false, "fsdp: unknown backend");
}

}  // namespace fsdp::detail
