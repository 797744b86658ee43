// What users do to a sharded module that would go wrong silently.
#pragma once

#include <fsdp/comm.h>

#include "runtime/unit.h"

namespace fsdp::detail {

// Throws when a parameter cannot be sharded: it is not dense, or of a type that cannot be communicated.
void check_type(const at::Tensor& tensor, const std::string& name);

// A graph that `tensor` was part of before it was sharded: its backward throws. New graphs are not touched.
void refuse_old_graphs(const at::Tensor& tensor, const std::string& name);

// Throws when the module's tensor is no longer the view that sharding made of it.
void check_parameter(const UnitParam& param);

// Whether all ranks were given the same tensors. Collective.
bool batches_are_equal(Comm& comm, c10::Device device, const std::vector<at::Tensor>& arguments);

}  // namespace fsdp::detail
