// Precision: the dtypes in which a sharded model is kept, computed and reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace fsdp {

// The dtypes of a model or a unit. A dtype that is not set stays as the module has it.
struct Precision {
  std::optional<at::ScalarType> param = {};   // compute dtype of forward and backward
  std::optional<at::ScalarType> reduce = {};  // dtype to reduce gradients in; default: the shard's dtype
  std::optional<at::ScalarType> output = {};  // forward's floating-point outputs are cast to it
  std::optional<at::ScalarType> buffer = {};  // floating-point buffers are converted to it, once
  std::optional<at::ScalarType> master = {};  // dtype of shards, optimizer state; default: the module's
  bool keep_low_precision_grads = false;      // .grad() has the dtype `reduce`, not the shard's
  bool cast_inputs = true;                    // forward's floating-point arguments are cast to `param`
};

Precision fp32();
Precision bf16();       // compute in bf16 over fp32 shards, reduce in fp32
Precision fp16();       // the same with fp16; use a GradScaler
Precision bf16_true();  // everything in bf16: shards, gradients, optimizer state
// Parses "32", "bf16-mixed", "16-mixed" and "bf16-true". Throws c10::Error for other names, listing these.
Precision parse_precision(const std::string& name);

}  // namespace fsdp
