// on_meta(): constructs a model without memory; fully_shard() fills it shard by shard.
#pragma once

#include <memory>

namespace torch::nn {
class Module;
}

namespace fsdp {

namespace detail {

class Tape;

// While it lives, this thread's operators are recorded on a tape and run on the meta device.
class Taping {
 public:
  Taping();
  ~Taping();
  Taping(const Taping&) = delete;
  Taping& operator=(const Taping&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

}  // namespace detail

// Returns what `make` returns, usually a module, with parameters and buffers on the meta device: shapes, but
// no memory. fully_shard() then computes their values one parameter at a time, and each rank keeps its shard.
// The bits are those of `make()` with the random numbers it would have drawn on rank 0; the default generator
// does not advance. Throws if a constructor reads values (item(), data_ptr()). Affects this thread only.
template <class Make>
auto on_meta(Make make) {
  const detail::Taping taping;
  return make();
}

// Gives a module made by on_meta() its values without sharding it. Tensors that have values keep them.
void materialize(torch::nn::Module& module);

}  // namespace fsdp
