// make_toy_backend(): collectives of toy devices.
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "behaviour/toy_device.h"
#include "support/gloo.h"

namespace fsdp::testing {

namespace {

using InnerWork = c10::intrusive_ptr<::c10d::Work>;

// Copies the result to its device once it is there.
class StagedWork final : public ::c10d::Work {
 public:
  StagedWork(InnerWork inner, at::Tensor result, at::Tensor staged)
      : inner_(std::move(inner)), result_(std::move(result)), staged_(std::move(staged)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = inner_->wait(timeout);
    if (result_.defined()) std::exchange(result_, at::Tensor()).copy_(staged_);
    return done;
  }

 private:
  InnerWork inner_;
  at::Tensor result_, staged_;
};

class ToyBackend final : public ::c10d::Backend {
 public:
  explicit ToyBackend(c10::intrusive_ptr<::c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return "toy"; }

  InnerWork broadcast(std::vector<at::Tensor>& tensors, const ::c10d::BroadcastOptions& options) override {
    return staged(tensors, [&](auto& host) { return inner_->broadcast(host, options); });
  }
  InnerWork allreduce(std::vector<at::Tensor>& tensors, const ::c10d::AllreduceOptions& options) override {
    return staged(tensors, [&](auto& host) { return inner_->allreduce(host, options); });
  }
  InnerWork _allgather_base(at::Tensor& output, at::Tensor& input,
                            const ::c10d::AllgatherOptions& options) override {
    at::Tensor from = input.cpu();
    at::Tensor to = output.cpu();
    return c10::make_intrusive<StagedWork>(inner_->_allgather_base(to, from, options), output, to);
  }
  InnerWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                 const ::c10d::ReduceScatterOptions& options) override {
    at::Tensor from = input.cpu();
    at::Tensor to = output.cpu();
    return c10::make_intrusive<StagedWork>(inner_->_reduce_scatter_base(to, from, options), output, to);
  }
  InnerWork barrier(const ::c10d::BarrierOptions& options) override { return inner_->barrier(options); }
  void abort() override { inner_->abort(); }

 private:
  template <class Issue>
  static InnerWork staged(const std::vector<at::Tensor>& tensors, Issue issue) {
    std::vector<at::Tensor> host{tensors.at(0).cpu()};
    auto work = issue(host);
    return c10::make_intrusive<StagedWork>(std::move(work), tensors.at(0), host.front());
  }

  c10::intrusive_ptr<::c10d::Backend> inner_;
};

}  // namespace

c10::intrusive_ptr<::c10d::Backend> make_toy_backend(const c10::intrusive_ptr<::c10d::Store>& store, int rank,
                                                     int size) {
  return c10::make_intrusive<ToyBackend>(make_gloo(store, rank, size));
}

}  // namespace fsdp::testing
