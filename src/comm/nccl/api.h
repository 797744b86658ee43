// The table of NCCL calls that we make: found at run time, and replaced by tests.
#pragma once

#include <nccl.h>

#include <string>

namespace fsdp::detail {

// Names and meanings are NCCL's.
struct NcclApi {
  decltype(&::ncclGetVersion) get_version;
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclCommInitRankConfig) init_rank;
  decltype(&::ncclCommGetAsyncError) get_async_error;
  decltype(&::ncclCommAbort) abort;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclGetErrorString) error_string;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) recv;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  // Null before NCCL 2.19.
  ncclResult_t (*register_memory)(ncclComm_t comm, void* memory, size_t bytes, void** handle);
  ncclResult_t (*deregister_memory)(ncclComm_t comm, void* handle);
};

// The table of the libnccl.so.2 that LibTorch has loaded or that the loader finds; otherwise null, and the
// reason.
struct LoadedNccl {
  const NcclApi* api = nullptr;
  std::string reason;
};
const LoadedNccl& load_nccl();

}  // namespace fsdp::detail
