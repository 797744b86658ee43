// LibTorch's CUDA graphs, which also keep memory and random numbers of a recording. libfsdp does not link
// libtorch_cuda, so this looks up its functions once it is loaded.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstddef>

#include "graph/device_graph.h"

namespace fsdp::detail {

namespace {

using at::cuda::CUDAGraph;

struct Api {
  void (*construct)(CUDAGraph*, bool keep_graph);
  void (*destroy)(CUDAGraph*);
  void (*begin)(CUDAGraph*, c10::MempoolId_t, cudaStreamCaptureMode);
  void (*end)(CUDAGraph*);
  void (*replay)(CUDAGraph*);
};

template <class Function>
bool find(const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

const Api* load() {
  static Api api{};
  static const bool found =
      find("_ZN2at4cuda9CUDAGraphC1Eb", api.construct) && find("_ZN2at4cuda9CUDAGraphD1Ev", api.destroy) &&
      find("_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode", api.begin) &&
      find("_ZN2at4cuda9CUDAGraph11capture_endEv", api.end) &&
      find("_ZN2at4cuda9CUDAGraph6replayEv", api.replay);
  return found ? &api : nullptr;
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(const Api& api) : api_(api) { api_.construct(graph(), /*keep_graph=*/false); }
  ~CudaGraph() override { api_.destroy(graph()); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Backward runs on a thread of autograd's, and other threads may work freely meanwhile.
  void begin() override { api_.begin(graph(), {0, 0}, cudaStreamCaptureModeRelaxed); }
  void end() override { api_.end(graph()); }
  void replay() override { api_.replay(graph()); }

 private:
  CUDAGraph* graph() { return reinterpret_cast<CUDAGraph*>(memory_); }

  const Api& api_;
  alignas(CUDAGraph) std::byte memory_[sizeof(CUDAGraph)];
};

}  // namespace

std::unique_ptr<DeviceGraph> make_cuda_graph() {
  if (const Api* api = load()) return std::make_unique<CudaGraph>(*api);
  TORCH_WARN_ONCE("fsdp: this LibTorch's CUDA graphs are not the ones fsdp knows; steps run as usual");
  return nullptr;
}

}  // namespace fsdp::detail
