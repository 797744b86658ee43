// Promise: on GPUs no bit depends on how long a stream takes, and with prefetch collectives run beside
// compute. Needs a GPU.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "support/twins.h"

namespace fsdp::testing {
namespace {

const c10::impl::VirtualGuardImpl& cuda() {
  static const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return guard;
}

// All streams of LibTorch's pool of one priority, among which are the library's: the pool hands them out in
// turn.
std::vector<c10::Stream> pool_of(c10::Device device, bool high_priority) {
  std::set<c10::StreamId> seen;
  std::vector<c10::Stream> streams;
  for (int i = 0; i < 64; ++i) {
    const c10::Stream one = cuda().getStreamFromGlobalPool(device, high_priority);
    if (seen.insert(one.id()).second) streams.push_back(one);
  }
  std::sort(streams.begin(), streams.end(),
            [](const c10::Stream& a, const c10::Stream& b) { return a.id() < b.id(); });
  return streams;
}

// at::cuda::sleep(): the current stream does nothing for so many cycles.
void sleep_here(int64_t cycles) {
  static const auto sleep = reinterpret_cast<void (*)(int64_t)>(::dlsym(RTLD_DEFAULT, "_ZN2at4cuda5sleepEl"));
  require(sleep != nullptr, "at::cuda::sleep is in libtorch_cuda");
  sleep(cycles);
}

// Blocks of one layer each, with something to do at every boundary between them.
struct OverlapNet : Learner {
  using AtBoundary = std::function<void(size_t block, bool forward)>;

  OverlapNet(int64_t width, int blocks) : width(width) {
    const SeededHere seeded(11);
    for (int i = 0; i < blocks; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
  }
  std::vector<at::Tensor> batch(int64_t index) const override {
    auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
    return {torch::randn({rows, width}, gen)};
  }
  at::Tensor forward(const std::vector<at::Tensor>& batch) override {
    at::Tensor h = batch[0];
    watch(h, 0, after);
    for (size_t i = 0; i < layers.size(); ++i) {
      if (before) before(i, true);
      h = torch::tanh(layers[i](h));
      if (after) after(i, true);
      if (i + 1 < layers.size()) watch(h, i + 1, after);
      watch(h, i, before);
    }
    return h.square().mean();
  }
  // Backward comes to `h`, where a block has ended and then another begins.
  static void watch(const at::Tensor& h, size_t block, const AtBoundary& then) {
    if (!then || !h.requires_grad()) return;
    h.register_hook([block, then](const at::Tensor&) { then(block, false); });
  }

  int64_t width;
  int64_t rows = 64;
  AtBoundary before, after;
  std::vector<torch::nn::Linear> layers;
};

ShardOptions overlap_options(BackwardPrefetch policy) {
  ShardOptions options{.wrap = by_type_name({"Linear"}), .precision = bf16()};
  options.backward_prefetch = policy;
  if (policy == BackwardPrefetch::none) options.forward_prefetch = 0;
  return options;
}

// Which streams are slow: that of the model, or those of the pool whose number has a bit set or not. Any two
// streams differ in a bit, so each is slow in some run where the other is not.
struct Slow {
  bool main = false;
  int bit = -1;
  bool set = false;
};

std::vector<Slow> slow_cases() {
  std::vector<Slow> all{{}, {.main = true}};
  for (int bit = 0; bit < 5; ++bit)
    for (const bool set : {false, true}) all.push_back({.bit = bit, .set = set});
  return all;
}

void delay(const Slow& slow, const std::vector<c10::Stream>& pool) {
  constexpr int64_t kCycles = 300'000;
  if (slow.main) sleep_here(kCycles);
  if (slow.bit < 0) return;
  for (size_t i = 0; i < pool.size(); ++i) {
    if (((i >> slow.bit) & 1U) != (slow.set ? 1U : 0U)) continue;
    const c10::StreamGuard guard(pool[i]);
    sleep_here(kCycles);
  }
}

State train_with_delays(const World& world, const ShardOptions& options, const Slow& slow) {
  std::vector<c10::Stream> pool = pool_of(world.device(), true);
  for (const c10::Stream& stream : pool_of(world.device(), false)) pool.push_back(stream);
  const auto net = std::make_shared<OverlapNet>(96, 5);
  net->before = net->after = [&](size_t, bool) { delay(slow, pool); };
  auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), options);
  train_sharded(model, world, 4, Optim::sgd);
  return state_of(model);
}

// A sum of two ranks has one order, so bits are equal.
TEST(GpuOverlap, DelaysChangeNoBits) {
  for (const int ranks : {1, 2})
    run_on_gpus(ranks, [](World& world) {
      at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
      for (const auto policy : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none})
        for (const bool offload : {false, true}) {
          if (offload && policy != BackwardPrefetch::pre) continue;
          ShardOptions options = overlap_options(policy);
          options.offload.params = offload;
          const State wanted = train_with_delays(world, options, {});
          for (const Slow& slow : slow_cases()) require_same(train_with_delays(world, options, slow), wanted);
        }
    });
}

struct Span {
  double begin = 0, end = 0;
  double length() const { return std::max(0.0, end - begin); }
};

// One block in one phase, on the model's stream and on all streams of the pool.
struct BlockEvents {
  using Events = std::vector<c10::Event>;
  BlockEvents(const c10::Stream& main, const std::vector<c10::Stream>& pool) : main_(main), pool_(pool) {
    before_ = record(pool_);
    issued_ = record({main_});
  }
  // The block's unit is there, and what is gathered or reduced beside it was issued.
  void start() {
    after_ = record(pool_);
    started_ = record({main_});
  }
  void end() { ended_ = record({main_}); }

  Span compute(const c10::Event& zero) const {
    require(!ended_.empty(), "the block has ended");
    return {zero.elapsedTime(started_[0]), zero.elapsedTime(ended_[0])};
  }
  // What stream i of the pool was given: it ends before the block starts, or begins with it.
  Span collective(const c10::Event& zero, size_t i) const {
    const double free = zero.elapsedTime(before_[i]);
    const double end = zero.elapsedTime(after_[i]);
    const double started = zero.elapsedTime(started_[0]);
    const double from = end <= started ? zero.elapsedTime(issued_[0]) : started;
    return {std::max(free, from), end};
  }

 private:
  static Events record(const std::vector<c10::Stream>& streams) {
    Events events;
    for (const c10::Stream& stream : streams)
      events.emplace_back(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT).record(stream);
    return events;
  }

  c10::Stream main_;
  const std::vector<c10::Stream>& pool_;
  Events before_, issued_, after_, started_, ended_;
};

struct OverlapResult {
  double gathers = 0, reduces = 0;  // the part of their time in which a block computes
};

// One step of a model that has its plan, block by block.
class Overlap {
 public:
  explicit Overlap(const World& world, OverlapNet& net) : net_(net), pool_(pool_of(world.device(), true)) {}

  void begin() {
    zero_.record(main());
    net_.before = [this](size_t block, bool forward) {
      auto& list = forward ? forward_ : backward_;
      list.emplace_back(main(), pool_);
      { const auto held = use(net_.layers[block]->weight); }
      list.back().start();
    };
    net_.after = [this](size_t, bool forward) { (forward ? forward_ : backward_).back().end(); };
  }

  OverlapResult result() {
    cuda().synchronizeDevice(main().device_index());
    std::vector<Span> computes;
    for (const auto* list : {&forward_, &backward_})
      for (const BlockEvents& block : *list) computes.push_back(block.compute(zero_));
    Sum gathers, reduces;
    for (size_t i = 0; i < pool_.size(); ++i) {
      Sum forward, backward;
      for (const BlockEvents& block : forward_) forward.add(block.collective(zero_, i), computes);
      for (const BlockEvents& block : backward_) backward.add(block.collective(zero_, i), computes);
      (forward.all > 0 ? gathers : reduces).add(forward);
      (forward.all > 0 ? gathers : reduces).add(backward);
    }
    return {gathers.part(), reduces.part()};
  }

 private:
  struct Sum {
    double all = 0, inside = 0;
    void add(const Span& one, const std::vector<Span>& computes) {
      constexpr double kLeast = 0.02;  // ms: an event on an idle stream takes less
      if (one.length() < kLeast) return;
      all += one.length();
      for (const Span& compute : computes)
        inside += Span{std::max(one.begin, compute.begin), std::min(one.end, compute.end)}.length();
    }
    void add(const Sum& other) {
      all += other.all;
      inside += other.inside;
    }
    double part() const { return all > 0 ? inside / all : 0; }
  };

  c10::Stream main() const { return cuda().getStream(net_.layers[0]->weight.device()); }

  OverlapNet& net_;
  std::vector<c10::Stream> pool_;
  c10::Event zero_{c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT};
  std::vector<BlockEvents> forward_, backward_;
};

OverlapResult measure(const World& world, BackwardPrefetch policy) {
  const auto net = std::make_shared<OverlapNet>(4096, 6);
  net->rows = 4096;
  auto model = fully_shard(world, std::static_pointer_cast<Learner>(net), overlap_options(policy));
  const at::Tensor x = net->batch(world.rank())[0].to(world.device());
  const auto step = [&] {
    model(std::vector<at::Tensor>{x.detach().requires_grad_()}).backward();
    model.zero_grad();
  };
  Overlap overlap(world, *net);
  for (int i = 0; i < 4; ++i) step();
  overlap.begin();
  step();
  net->before = net->after = {};
  return overlap.result();
}

// Ranks share one GPU, so the fractions are those of streams that compete; their order is what counts.
TEST(GpuOverlap, CollectivesRunBesideCompute) {
  for (const int ranks : {2, 4})
    run_on_gpus(ranks, [](World& world) {
      std::map<std::string, OverlapResult> found;
      for (const auto& [name, policy] :
           {std::pair("none", BackwardPrefetch::none), std::pair("post", BackwardPrefetch::post),
            std::pair("pre", BackwardPrefetch::pre)}) {
        found[name] = measure(world, policy);
        if (world.rank() == 0)
          std::cout << R"({"test":"overlap","ranks":)" << world.size() << R"(,"policy":")" << name
                    << R"(","gather_overlap":)" << found[name].gathers << R"(,"reduce_overlap":)"
                    << found[name].reduces << "}" << std::endl;
      }
      if (world.rank() != 0) return;
      require(found["pre"].gathers > found["none"].gathers, "more gathers run beside compute with `pre`");
      require(found["pre"].reduces > found["none"].reduces, "more reduces run beside compute with `pre`");
    });
}

}  // namespace
}  // namespace fsdp::testing
