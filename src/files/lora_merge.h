// Low-rank adapters (LoRA) of a checkpoint, and the matrices that they add to their base weights.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "files/checkpoint_reader.h"
#include "files/hf_layout.h"

namespace fsdp::detail {

// The matrix left * right, in the row-major order of the weight that it is added to.
struct LowRankMatrix {
  int64_t rows = 0, rank = 0, columns = 0;
  std::vector<double> left;   // [rows, rank]
  std::vector<double> right;  // [rank, columns]

  // Adds its elements from number `first` on to `values`.
  void add_to(std::span<double> values, int64_t first) const;
};

// Moves the adapters' tensors, `<layer>.lora_A.weight` and `<layer>.lora_B.weight`, out of `table`.
TensorTable take_adapters(TensorTable& table);

// alpha / rank * B A for every adapter, by the name of its weight. `lora` is the config's value of that name,
// with rank and alpha. `transposed`: weights are [in, out], as GPT-2's. Throws CheckpointError if the tensors
// are no pairs of that rank.
std::map<std::string, LowRankMatrix> read_adapters(CheckpointReader& source, const TensorTable& adapters,
                                                   const Json& lora, bool transposed);

}  // namespace fsdp::detail
