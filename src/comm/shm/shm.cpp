#include "comm/shm/shm.h"

#include "base/process_watch.h"
#include "comm/shared/shared_backend.h"
#include "comm/shm/memfd.h"

namespace fsdp::detail {

bool shm_available() { return true; }

std::unique_ptr<CommBackend> make_shm(const GroupInfo& info) {
  std::vector<int64_t> pids;
  for (const Peer& peer : info.peers) pids.push_back(peer.pid);
  return make_shared_backend("shm", info, std::make_unique<MemfdSource>(),
                             std::make_unique<ProcessWatch>(pids));
}

}  // namespace fsdp::detail
