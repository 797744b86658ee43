// Full gradients in a full_params() scope.
#pragma once

#include <fsdp/scopes.h>

#include <vector>

#include "runtime/model.h"

namespace fsdp::detail {

// While a scope lives, the module's .grad() of its units are whole. Otherwise they are traps.
class FullGradients {
 public:
  // Gathers the slices' .grad() of `units` for the module's parameters. Collective.
  FullGradients(Model& model, const std::vector<Unit*>& units, const FullParamsOptions& options);

  // Restores the module's .grad(). With `write_back` the slices' .grad() take the values first, and are
  // dropped if the module's was dropped.
  void close(bool write_back);

 private:
  struct Part {
    UnitRegion* region;
    at::Tensor whole;  // [total], in the gradients' dtype
  };
  struct Grad {
    UnitParam* param;
    at::Tensor before;      // the module's .grad()
    bool used_by_any_rank;  // some rank has a gradient for it
  };
  void ask_ranks();
  void gather(UnitRegion& region, const FullParamsOptions& options);
  const at::Tensor& whole_of(const UnitParam& param) const;
  void write_back(UnitParam& param) const;

  Model& model_;
  std::vector<Grad> grads_;
  std::vector<Part> parts_;  // empty if this rank does not get them
};

}  // namespace fsdp::detail
