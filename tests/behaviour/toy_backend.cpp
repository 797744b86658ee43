// make_toy_backend(): collectives of toy devices.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>

#include "behaviour/toy_device.h"
#include "behaviour/toy_races.h"
#include "support/gloo.h"

namespace fsdp::testing {

namespace {

using InnerWork = c10::intrusive_ptr<::c10d::Work>;

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// A collective, as whoever looks for races sees it: on a stream of its own, behind the current one.
HappensBefore::Clock on_lane(c10::StreamId lane, const char* op, const at::Tensor& input,
                             const at::Tensor& output) {
  const c10::Stream stream(c10::Stream::UNSAFE, output.device(), lane);
  races::block(races::record(current_stream(output.device())), stream);
  races::access(stream, input, /*write=*/false, op);
  races::access(stream, output, /*write=*/true, op);
  return races::record(stream);
}

// Copies the result to its device once it is there. The input lives as long.
class StagedWork final : public ::c10d::Work {
 public:
  StagedWork(InnerWork inner, at::Tensor input, at::Tensor result, at::Tensor staged,
             HappensBefore::Clock done)
      : inner_(std::move(inner)),
        input_(std::move(input)),
        result_(std::move(result)),
        staged_(std::move(staged)),
        done_(std::move(done)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = inner_->wait(timeout);
    if (!result_.defined()) return done;
    races::block(done_, current_stream(result_.device()));
    const races::Inside carried_out;
    std::exchange(result_, at::Tensor()).copy_(staged_);
    input_ = at::Tensor();
    return done;
  }

 private:
  InnerWork inner_;
  at::Tensor input_, result_, staged_;
  HappensBefore::Clock done_;
};

class ToyBackend final : public ::c10d::Backend {
 public:
  explicit ToyBackend(c10::intrusive_ptr<::c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return "toy"; }

  InnerWork broadcast(std::vector<at::Tensor>& tensors, const ::c10d::BroadcastOptions& options) override {
    return staged(gathers_, "broadcast", tensors.at(0),
                  [&](auto& host) { return inner_->broadcast(host, options); });
  }
  InnerWork allreduce(std::vector<at::Tensor>& tensors, const ::c10d::AllreduceOptions& options) override {
    return staged(reduces_, "all_reduce", tensors.at(0),
                  [&](auto& host) { return inner_->allreduce(host, options); });
  }
  InnerWork _allgather_base(at::Tensor& output, at::Tensor& input,
                            const ::c10d::AllgatherOptions& options) override {
    return staged(gathers_, "all_gather", input, output,
                  [&](auto& to, auto& from) { return inner_->_allgather_base(to, from, options); });
  }
  InnerWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                 const ::c10d::ReduceScatterOptions& options) override {
    return staged(reduces_, "reduce_scatter", input, output,
                  [&](auto& to, auto& from) { return inner_->_reduce_scatter_base(to, from, options); });
  }
  InnerWork barrier(const ::c10d::BarrierOptions& options) override { return inner_->barrier(options); }
  void abort() override { inner_->abort(); }

 private:
  template <class Issue>
  static InnerWork staged(c10::StreamId lane, const char* op, const at::Tensor& input,
                          const at::Tensor& output, Issue issue) {
    auto done = on_lane(lane, op, input, output);
    const races::Inside carried_out;
    at::Tensor from = input.cpu();
    at::Tensor to = output.cpu();
    return c10::make_intrusive<StagedWork>(issue(to, from), input, output, to, std::move(done));
  }
  // In place.
  template <class Issue>
  static InnerWork staged(c10::StreamId lane, const char* op, const at::Tensor& tensor, Issue issue) {
    return staged(lane, op, tensor, tensor, [&](at::Tensor& to, at::Tensor&) {
      std::vector<at::Tensor> host{to};
      return issue(host);
    });
  }

  static c10::StreamId new_lane() {
    static std::atomic<c10::StreamId> given = 1000;  // streams of the pool come before
    return given++;
  }

  c10::intrusive_ptr<::c10d::Backend> inner_;
  c10::StreamId gathers_ = new_lane();
  c10::StreamId reduces_ = new_lane();
};

}  // namespace

c10::intrusive_ptr<::c10d::Backend> make_toy_backend(const c10::intrusive_ptr<::c10d::Store>& store, int rank,
                                                     int size) {
  return c10::make_intrusive<ToyBackend>(make_gloo(store, rank, size));
}

}  // namespace fsdp::testing
