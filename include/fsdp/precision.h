// Which dtypes a sharded model is kept, computed and reduced in.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace fsdp {

// Dtypes. What is not set stays as the module has it.
struct Precision {
  std::optional<at::ScalarType> param = {};   // compute dtype of forward and backward
  std::optional<at::ScalarType> reduce = {};  // gradients are reduced in it; default: the shard's dtype
  std::optional<at::ScalarType> output = {};  // forward's floating-point outputs are cast to it
  std::optional<at::ScalarType> buffer = {};  // floating-point buffers are converted to it, once
  std::optional<at::ScalarType> master = {};  // of shards and optimizer state; default: the module's dtype
  bool keep_low_precision_grads = false;      // .grad() has the dtype `reduce`, not the shard's
  bool cast_inputs = true;                    // forward's floating-point arguments are cast to `param`
};

Precision fp32();
Precision bf16();       // compute in bf16 over fp32 shards, reduce in fp32
Precision fp16();       // the same with fp16; use a GradScaler
Precision bf16_true();  // everything in bf16: shards, gradients, optimizer state
// From "32", "bf16-mixed", "16-mixed", "bf16-true". Throws c10::Error for another, listing these.
Precision parse_precision(const std::string& name);

}  // namespace fsdp
