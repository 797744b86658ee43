// What users do to a sharded module that would go wrong silently.
#pragma once

#include <fsdp/comm.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "runtime/model.h"

namespace fsdp::detail {

// Throws when a parameter cannot be sharded: it is not dense, or of a type that cannot be communicated.
void check_type(const at::Tensor& tensor, const std::string& name);

// A graph that `tensor` was part of before it was sharded: its backward throws. New graphs are not touched.
void refuse_old_graphs(const at::Tensor& tensor, const std::string& name);

// Throws when the module's tensor is no longer the view that sharding made of it, or its slice has hooks,
// which autograd would not call.
void check_parameter(const UnitParam& param);

// The parameters registered in `module` and below it.
RegisteredParams registered_params(const torch::nn::Module& module);
// Throws when others are registered in `module` than `known`.
void check_tree(const torch::nn::Module& module, const RegisteredParams& known);

// Whether all ranks were given the same tensors. Collective.
bool batches_are_equal(Comm& comm, c10::Device device, const std::vector<at::Tensor>& arguments);

}  // namespace fsdp::detail
