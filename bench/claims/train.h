// Training steps of a Llama, with the bytes and the times of every rank.
#pragma once

#include <fsdp/world.h>

#include <cstdint>
#include <string>

namespace bench {

struct TrainSettings {
  std::string device = "cpu";
  int ranks = 2;
  std::string strategy = "full_shard";
  int64_t dim = 256, layers = 6, heads = 4, vocab = 8192, batch = 2, seq = 128;
  int64_t inner = 0;  // width of the MLP; 0: as LlamaConfig has it
  int steps = 3, warmup = 2;
  bool bf16 = false;      // compute in bf16; weights and reduction stay fp32
  std::string prefetch;   // backward_prefetch, with slots even where ranks could share their shards
  int keep_every = 0;     // every k-th decoder layer stays gathered from forward to backward; 0: none
  int64_t recompute = 0;  // every k-th decoder layer is computed again in backward; 0: none
  bool memory = false;    // measure memory; times then mean nothing
};

// Trains in `settings.ranks` processes; rank 0 prints one JSON line. Throws what fsdp::run_local() throws.
void train(const TrainSettings& settings);

}  // namespace bench
