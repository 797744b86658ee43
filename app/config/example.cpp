#include "app/config/example.h"

#include <string>

namespace fsdp::config {

namespace {

constexpr const char* kStagesText =
    R"yaml(# A configuration of `fsdp train`. Copy it to config.yaml and change it:
#   fsdp config --example > config.yaml
# `fsdp config --explain` lists every key. What is left out has its default.

# Stages are trained one after the other: fsdp train --stage stage2. The first is the default.
training_stages:
  stage1:
    distributed:
      strategy: auto                  # auto | fsdp | ddp
      num_nodes: 1
      devices: auto                   # ranks per node; auto: the GPUs, else the cores
      sync_batchnorm: false
      fsdp:
        enabled: true
        cpu_offload: false
        sharding_strategy: FULL_SHARD # or SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2
        backward_prefetch: BACKWARD_PRE
        forward_prefetch: false
        limit_all_gathers: true
        activation_checkpointing: false
    training:
      batch_size: 8                   # sequences per rank and microbatch
      gradient_accumulation_steps: 1
      max_steps: 200
      precision: "32"                 # or bf16-mixed, 16-mixed, bf16-true
    model:
      config: model_config_tiny_gpt2
    data:
      # train: [corpus.txt]           # your own files; without them, this project's documentation
      tokenizer: byte
      sequence_length: 128            # tokens; without this line the model's context
    optimizer:
      lr: 1.0e-3
    schedule:
      name: cosine
      warmup_steps: 20
    checkpoint:
      every_steps: 100
    eval:
      every_steps: 50

  stage2:                             # starts from the weights of stage1's run
    training:
      batch_size: 8
      max_steps: 100
    model:
      config: model_config_tiny_gpt2
    data:
      tokenizer: byte
      sequence_length: 128
    optimizer:
      lr: 2.0e-4
    schedule:
      name: linear
      warmup_steps: 10
    checkpoint:
      every_steps: 100
    eval:
      every_steps: 50

# Presets for `distributed`, chosen by --fsdp-config. They win over the stage.
distributed_examples:
  single_node_fsdp:
    strategy: fsdp
    num_nodes: 1
    devices: 8
    fsdp:
      enabled: true
      cpu_offload: false
      sharding_strategy: FULL_SHARD
      activation_checkpointing: true
  multi_node_fsdp:
    strategy: fsdp
    num_nodes: 4
    devices: 8
    fsdp:
      enabled: true
      cpu_offload: true
      sharding_strategy: FULL_SHARD
      activation_checkpointing: true
  large_scale_fsdp:
    strategy: fsdp
    num_nodes: 8
    devices: 8
    fsdp:
      enabled: true
      cpu_offload: true
      sharding_strategy: FULL_SHARD
      backward_prefetch: BACKWARD_PRE
      forward_prefetch: true
      limit_all_gathers: true
      activation_checkpointing: true
      use_orig_params: false

logging:
  debug: false
  # log_file: training.log

wandb:
  use_wandb: false
  project: fsdp
  tags: []
)yaml";

constexpr const char* kModelsText = R"yaml(
# Models, chosen by --model-config. The tiny ones are for the byte tokenizer: 256 bytes and an end of text.
model_config_tiny_gpt2: {type: gpt2, vocab_size: 257, context_length: 256, hidden_size: 128, num_layers: 4, num_heads: 4}
model_config_tiny_llama: {type: llama, vocab_size: 257, context_length: 256, hidden_size: 128, num_layers: 4, num_heads: 4, num_kv_heads: 2}

# GPT-2
model_config_gpt2_124M: {type: gpt2, vocab_size: 50257, context_length: 1024, hidden_size: 768, num_layers: 12, num_heads: 12}
model_config_gpt2_355M: {type: gpt2, vocab_size: 50257, context_length: 1024, hidden_size: 1024, num_layers: 24, num_heads: 16}
model_config_gpt2_774M: {type: gpt2, vocab_size: 50257, context_length: 1024, hidden_size: 1280, num_layers: 36, num_heads: 20}
model_config_gpt2_1.5B: {type: gpt2, vocab_size: 50257, context_length: 1024, hidden_size: 1600, num_layers: 48, num_heads: 25}

# Llama: 1B and 3B as Llama 3.2, without its scaled rotary embeddings, which reach 131072 tokens
model_config_1B:
  type: llama
  vocab_size: 128256
  context_length: 8192
  hidden_size: 2048
  num_layers: 16
  num_heads: 32
  num_kv_heads: 8
  intermediate_size: 8192
  tie_embeddings: true
  rope_theta: 500000
model_config_3B:
  type: llama
  vocab_size: 128256
  context_length: 8192
  hidden_size: 3072
  num_layers: 28
  num_heads: 24
  num_kv_heads: 8
  intermediate_size: 8192
  tie_embeddings: true
  rope_theta: 500000
model_config_1.7B:                    # as SmolLM2 1.7B
  type: llama
  vocab_size: 49152
  context_length: 8192
  hidden_size: 2048
  num_layers: 24
  num_heads: 32
  intermediate_size: 8192
  tie_embeddings: true
  rope_theta: 130000
model_config_7B:                      # as Llama 2
  type: llama
  vocab_size: 32000
  context_length: 4096
  hidden_size: 4096
  num_layers: 32
  num_heads: 32
  intermediate_size: 11008
model_config_8B:                      # as Llama 3
  type: llama
  vocab_size: 128256
  context_length: 8192
  hidden_size: 4096
  num_layers: 32
  num_heads: 32
  num_kv_heads: 8
  intermediate_size: 14336
  rope_theta: 500000
model_config_70B:                     # as Llama 3
  type: llama
  vocab_size: 128256
  context_length: 8192
  hidden_size: 8192
  num_layers: 80
  num_heads: 64
  num_kv_heads: 8
  intermediate_size: 28672
  rope_theta: 500000
)yaml";

}  // namespace

const char* example_config() {
  static const std::string text = std::string(kStagesText) + kModelsText;
  return text.c_str();
}

}  // namespace fsdp::config
