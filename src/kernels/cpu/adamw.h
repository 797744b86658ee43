// One step of AdamW over flat arrays, in one pass.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::detail {

// Constants of one step, the same for all elements.
struct AdamWNumbers {
  float decay = 1;     // 1 - lr * weight_decay
  float rest1 = 0.1F;  // 1 - beta1
  float beta2 = 0.999F;
  float rest2 = 0.001F;  // 1 - beta2
  float step_size = 0;   // lr / (1 - beta1^step)
  float bias = 1;        // sqrt(1 - beta2^step)
  float eps = 1e-8F;
  float factor = 1;   // multiplies gradients before anything else
  uint32_t step = 0;  // seeds the random rounding of narrow moments
};
AdamWNumbers adamw_numbers(double lr, double beta1, double beta2, double eps, double weight_decay,
                           int64_t step);

// Arrays of the same length; none overlaps another.
struct AdamWArrays {
  float* param = nullptr;
  const float* grad = nullptr;
  void* average = nullptr;  // fp32, or bf16 if moments are narrow
  void* square = nullptr;
  void* maximum = nullptr;   // running maximum of `square` (amsgrad); null: not kept
  uint16_t* copy = nullptr;  // receives the new parameters as bf16; null: not needed
};

// Computes every element on its own, in fp32: its bits depend on no other element and not on the instruction
// set. With fp32 moments they are those of at::_fused_adamw_, wherever that fills whole vectors. Narrow
// moments are rounded to bf16 up or down at random (Note [Narrow moments]).
void adamw(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow);

using AdamWRun = void (*)(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow);
void adamw_scalar(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow);
void adamw_avx2(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow);
void adamw_avx512(const AdamWArrays& arrays, size_t count, const AdamWNumbers& numbers, bool narrow);

}  // namespace fsdp::detail
