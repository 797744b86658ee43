// Keys of the section `distributed`.
#include "app/config/schema.h"

namespace fsdp::config {

namespace {

std::vector<Key> rank_keys() {
  return {{.path = "distributed.strategy",
           .value = "auto",
           .choices = {"auto", "fsdp", "ddp"},
           .reader = Reader::both,
           .help = "fsdp shards, ddp replicates (NO_SHARD). auto: fsdp, but ddp if fsdp.enabled is false"},
          {.path = "distributed.num_nodes",
           .type = Type::integer,
           .value = 1,
           .least = 1,
           .most = 100000,
           .reader = Reader::both,
           .help = "Machines. The command is started once on each"},
          {.path = "distributed.devices",
           .type = Type::integer,
           .value = "auto",
           .least = 1,
           .most = 1024,
           .choices = {"auto"},
           .reader = Reader::both,
           .help = "Ranks per machine: its GPUs, else CPU ranks. auto: the machine's GPUs, else its cores"},
          {.path = "distributed.sync_batchnorm",
           .type = Type::flag,
           .value = false,
           .help = "Batch norms use the statistics of all ranks"},
          {.path = "distributed.timeout",
           .type = Type::integer,
           .value = 300,
           .least = 1,
           .most = 86400,
           .help = "Seconds that ranks wait for each other before the run fails"}};
}

std::vector<Key> shard_keys() {
  return {{.path = "distributed.fsdp.enabled",
           .type = Type::flag,
           .value = true,
           .reader = Reader::front,
           .help = "false: strategy auto means ddp"},
          {.path = "distributed.fsdp.cpu_offload",
           .type = Type::flag,
           .value = false,
           .help = "Parameters, gradients and optimizer state in host memory. CPU ranks: no effect"},
          {.path = "distributed.fsdp.sharding_strategy",
           .value = "FULL_SHARD",
           .choices = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"},
           .help = "What is sharded; HYBRID: sharded inside a machine, replicated across machines"},
          {.path = "distributed.fsdp.shard_size",
           .type = Type::integer,
           .value = 0,
           .least = 0,
           .most = 1e6,
           .help = "Ranks that hold a model together; 0: those of a machine",
           .needs = "distributed.fsdp.sharding_strategy",
           .needed = {"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}},
          {.path = "distributed.fsdp.activation_checkpointing",
           .type = Type::flag,
           .value = false,
           .reader = Reader::both,
           .help = "Activations of a block are computed again in backward"},
          {.path = "distributed.fsdp.use_orig_params",
           .type = Type::flag,
           .value = true,
           .reader = Reader::front,
           .help = "Has no effect: optimizers always see the original parameters"}};
}

std::vector<Key> prefetch_keys() {
  return {{.path = "distributed.fsdp.backward_prefetch",
           .value = "BACKWARD_PRE",
           .choices = {"BACKWARD_PRE", "BACKWARD_POST", "NONE"},
           .help = "Backward gathers a unit while the previous one computes, before its reduction, or after"},
          {.path = "distributed.fsdp.forward_prefetch",
           .type = Type::integer,
           .value = false,
           .least = 0,
           .most = 1024,
           .or_flag = true,
           .help = "Units that forward gathers ahead; true: 1"},
          {.path = "distributed.fsdp.limit_all_gathers",
           .type = Type::integer,
           .value = true,
           .least = 1,
           .most = 1024,
           .or_flag = true,
           .help = "Units gathered at a time; true: 2, false: no limit"},
          {.path = "distributed.fsdp.wrap",
           .value = "auto",
           .choices = {"auto", "whole_model", "by_size"},
           .help = "Units. auto: a model's blocks; by_size: modules of min_num_params and more"},
          {.path = "distributed.fsdp.min_num_params",
           .type = Type::integer,
           .value = 1000,
           .least = 0,
           .most = 1e15,
           .help = "Parameters of the smallest unit",
           .needs = "distributed.fsdp.wrap",
           .needed = {"by_size"}}};
}

}  // namespace

std::vector<Key> distributed_keys() {
  std::vector<Key> keys = rank_keys();
  for (auto part : {shard_keys, prefetch_keys})
    for (Key& key : part()) keys.push_back(std::move(key));
  return keys;
}

}  // namespace fsdp::config
