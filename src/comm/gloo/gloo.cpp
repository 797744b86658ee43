#include "comm/gloo/gloo.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <csignal>

#include "comm/gloo/collectives.h"

namespace fsdp::detail {

namespace {

class GlooBackend final : public CommBackend {
 public:
  explicit GlooBackend(const GroupInfo& info) : group_(info) {}

  const char* name() const override { return "gloo"; }
  bool compares_operations() const override { return true; }
  bool sums_in_order() const override { return true; }

  // ATen aligns host memory to 64 bytes only.
  at::Tensor allocate(MemoryUse /*use*/, int64_t numel, at::ScalarType dtype) override {
    constexpr int64_t kAlignment = 256;
    const auto element = static_cast<int64_t>(size_of(to_dtype(dtype)));
    const at::Tensor block = at::zeros({numel + kAlignment / element}, at::TensorOptions().dtype(dtype));
    const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(block.data_ptr()) % kAlignment);
    return block.narrow(0, (kAlignment - past) % kAlignment / element, numel);
  }

  WorkPtr all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) override {
    return gloo_all_gather(group_, slot, shard, std::move(info));
  }
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                         OpInfo info) override {
    return gloo_reduce_scatter(group_, output, input, scale * factor(op), std::move(info));
  }
  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) override {
    return gloo_all_reduce(group_, tensor, factor(op), std::move(info));
  }
  WorkPtr broadcast(const at::Tensor& tensor, int root, OpInfo info) override {
    return gloo_broadcast(group_, tensor, root, std::move(info));
  }
  WorkPtr send(const at::Tensor& tensor, int to, OpInfo info) override {
    return group_.message(tensor, to, true, std::move(info));
  }
  WorkPtr recv(const at::Tensor& tensor, int from, OpInfo info) override {
    return group_.message(tensor, from, false, std::move(info));
  }
  WorkPtr barrier(OpInfo info) override { return gloo_barrier(group_, std::move(info)); }

  void abort(AbortCause cause, std::string_view reason) override {
    group_.watch().abort(cause, std::string(reason));
  }
  AbortCause abort_cause() const override { return group_.watch().abort_cause(); }
  void leaving(std::string_view why) override {
    group_.watch().leaving(why.empty() ? "" : "it left the group: " + std::string(why));
  }

 private:
  double factor(ReduceOp op) const { return op == ReduceOp::average ? 1.0 / group_.size() : 1.0; }

  GlooGroup group_;
};

// Gloo writes to sockets in a way that raises SIGPIPE when the peer has died, and by default that ends this
// process. With a handler the write fails instead. Unlike SIG_IGN, a handler is not inherited by programs
// that this process starts.
void survive_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction quiet {};
  quiet.sa_handler = [](int) {};
  quiet.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &quiet, nullptr);
}

}  // namespace

bool gloo_available() { return true; }

std::string gloo_unavailable_reason() { return ""; }

std::unique_ptr<CommBackend> make_gloo(const GroupInfo& info) {
  TORCH_CHECK(info.device.is_cpu(), "fsdp: the gloo backend moves CPU tensors, not those of device ",
              info.device);
  survive_broken_pipes();
  return std::make_unique<GlooBackend>(info);
}

}  // namespace fsdp::detail
