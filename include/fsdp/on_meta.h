// Models that are larger than a rank's memory: made without memory, filled when they are sharded.
#pragma once

#include <memory>

namespace torch::nn {
class Module;
}

namespace fsdp {

namespace detail {

class Tape;

// While it lives on this thread, operators are written down and run without memory.
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
// no memory. fully_shard() then computes their values piece by piece and each rank keeps its shard: the bits
// are those of `make()` itself with the random numbers it would have drawn on rank 0. A constructor that
// reads values (item(), data_ptr()) throws.
template <class Make>
auto on_meta(Make make) {
  const detail::Taping taping;
  return make();
}

// Gives a module made by on_meta() its values without sharding it.
void materialize(torch::nn::Module& module);

}  // namespace fsdp
