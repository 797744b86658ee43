#include "comm/nccl/api.h"

#include <dlfcn.h>

namespace fsdp::detail {

namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool fill(void* library, NcclApi& api) {
  return find(library, "ncclGetVersion", api.get_version) &&
         find(library, "ncclGetUniqueId", api.get_unique_id) &&
         find(library, "ncclCommInitRankConfig", api.init_rank) &&
         find(library, "ncclCommGetAsyncError", api.get_async_error) &&
         find(library, "ncclCommAbort", api.abort) && find(library, "ncclCommDestroy", api.destroy) &&
         find(library, "ncclGetErrorString", api.error_string) &&
         find(library, "ncclGetLastError", api.last_error) &&
         find(library, "ncclAllGather", api.all_gather) &&
         find(library, "ncclReduceScatter", api.reduce_scatter) &&
         find(library, "ncclAllReduce", api.all_reduce) && find(library, "ncclBroadcast", api.broadcast) &&
         find(library, "ncclSend", api.send) && find(library, "ncclRecv", api.recv) &&
         find(library, "ncclGroupStart", api.group_start) && find(library, "ncclGroupEnd", api.group_end);
}

LoadedNccl load() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) library = ::dlopen("libnccl.so.2", RTLD_NOW);
  if (library == nullptr)
    return {nullptr, std::string("libnccl.so.2 cannot be loaded: ") + ::dlerror() +
                         ". Install NCCL, or a LibTorch that brings it."};
  static NcclApi api{};
  if (!fill(library, api)) return {nullptr, std::string("this libnccl.so.2 is too old: ") + ::dlerror()};
  if (!find(library, "ncclCommRegister", api.register_memory) ||
      !find(library, "ncclCommDeregister", api.deregister_memory))
    api.register_memory = nullptr;
  return {&api, ""};
}

}  // namespace

const LoadedNccl& load_nccl() {
  static const LoadedNccl loaded = load();
  return loaded;
}

}  // namespace fsdp::detail
