// Casts the inputs of operators that read a parameter to the parameter's dtype.
//
// Note [Inputs of units]
// Units may compute in different dtypes, and C++ modules have no hooks where a unit's inputs could be cast.
// So the parameters of a model with ShardOptions::cast_unit_inputs carry a second key, DeferredInit, which
// LibTorch keeps for libraries as well. It lies above autograd: an operator that reads such a parameter
// passes here first, as the program wrote it (linear, not addmm), and its floating-point inputs are cast by
// to(), which autograd records. Below, the key is excluded, so the operators it is made of are not cast
// again. The parameters of all units carry it, so that results of an fp32 unit are cast for a bf16 one. Not
// cast: watched tensors, numbers, statistics that are updated in place, inputs of operators that write to an
// argument, and inputs of gradient formulas ("..._backward"), which have the dtypes of their forward. The key
// has one kernel for all libraries: the tape's, which hands over to us while no tape runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fsdp::detail {

// `tensor`, whose operators are observed above autograd too.
at::Tensor with_casts(const at::Tensor& tensor);

// Runs an operator that has such a tensor among its inputs. The key is excluded.
void call_with_casts(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace fsdp::detail
