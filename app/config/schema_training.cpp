// Keys of the sections `training`, `optimizer` and `schedule`.
#include "app/config/schema.h"

namespace fsdp::config {

namespace {

constexpr double kMostSteps = 1e12;

std::vector<Key> batch_keys() {
  return {{.path = "training.batch_size",
           .type = Type::integer,
           .value = 8,
           .least = 1,
           .most = 65536,
           .reader = Reader::both,
           .help = "Sequences per rank and microbatch"},
          {.path = "training.gradient_accumulation_steps",
           .type = Type::integer,
           .value = 1,
           .least = 1,
           .most = 65536,
           .reader = Reader::both,
           .help = "Microbatches per rank and step. Computed from global_batch_size if that is set"},
          {.path = "training.global_batch_size",
           .type = Type::integer,
           .least = 1,
           .most = 1e9,
           .reader = Reader::both,
           .help = "Sequences per step",
           .unset = "batch_size x gradient_accumulation_steps x ranks"}};
}

std::vector<Key> length_keys() {
  return {{.path = "training.max_steps",
           .type = Type::integer,
           .least = 1,
           .most = kMostSteps,
           .reader = Reader::both,
           .help = "Optimizer steps of the run",
           .unset = "1000, or as max_epochs says"},
          {.path = "training.max_epochs",
           .type = Type::integer,
           .least = 1,
           .most = 1e9,
           .help = "Passes over the training data; with max_steps, the first limit reached ends the run",
           .unset = "no limit"},
          {.path = "training.max_skipped_steps",
           .type = Type::integer,
           .value = 10,
           .least = 0,
           .most = kMostSteps,
           .help = "Most steps in a row with gradients that are not finite; one more ends the run"},
          {.path = "training.seed",
           .type = Type::integer,
           .value = 42,
           .least = 0,
           .most = 9007199254740992.0,  // exact in JSON
           .help = "Seed of the initial weights, the shuffle and dropout"},
          {.path = "training.init_from",
           .reader = Reader::both,
           .help = "Run or checkpoint with the start weights; none: new weights",
           .unset = "the run of the stage before this one"}};
}

std::vector<Key> step_keys() {
  return {{.path = "training.precision",
           .value = "32",
           .choices = {"32", "bf16-mixed", "16-mixed", "bf16-true"},
           .reader = Reader::both,
           .help = "mixed: computes in 16 bits, weights in fp32; bf16-true: all in bf16"},
          {.path = "training.gradient_clipping",
           .type = Type::number,
           .value = 1.0,
           .least = 0,
           .most = 1e9,
           .help = "Largest norm of all gradients together; 0: off"},
          {.path = "training.reproducible",
           .type = Type::flag,
           .value = false,
           .reader = Reader::both,
           .help = "The same bits for every number of ranks; slower"},
          {.path = "training.graph",
           .value = "auto",
           .choices = {"auto", "off"},
           .help = "auto: steps are captured as CUDA graphs if that saves time"},
          {.path = "training.ema_decay",
           .type = Type::number,
           .value = 0.0,
           .least = 0,
           .most = 1,
           .below_most = true,
           .help = "Decay of the moving average of the weights; 0: none is kept"}};
}

std::vector<Key> optimizer_keys() {
  const auto fraction = [](std::string path, double value, std::string help, std::string optimizer) {
    return Key{.path = std::move(path),
               .type = Type::number,
               .value = value,
               .least = 0,
               .most = 1,
               .below_most = true,
               .help = std::move(help),
               .needs = "optimizer.name",
               .needed = {std::move(optimizer)}};
  };
  return {{.path = "optimizer.name", .value = "adamw", .choices = {"adamw", "sgd"}, .help = "The optimizer"},
          {.path = "optimizer.lr",
           .type = Type::number,
           .value = 3e-4,
           .least = 0,
           .most = 1000,
           .above_least = true,
           .help = "Highest learning rate, which the schedule scales"},
          {.path = "optimizer.weight_decay",
           .type = Type::number,
           .value = 0.1,
           .least = 0,
           .most = 1000,
           .help = "Applies to parameters with two or more dimensions, not to biases and norms"},
          fraction("optimizer.beta1", 0.9, "Decay of the first moment", "adamw"),
          fraction("optimizer.beta2", 0.95, "Decay of the second moment", "adamw"),
          {.path = "optimizer.eps",
           .type = Type::number,
           .value = 1e-8,
           .least = 0,
           .most = 1,
           .above_least = true,
           .help = "Added to the root of the second moment",
           .needs = "optimizer.name",
           .needed = {"adamw"}},
          fraction("optimizer.momentum", 0.0, "Momentum", "sgd"),
          {.path = "optimizer.moments",
           .value = "fp32",
           .choices = {"fp32", "bf16"},
           .help = "dtype of AdamW's moments",
           .needs = "optimizer.name",
           .needed = {"adamw"}}};
}

std::vector<Key> schedule_keys() {
  return {{.path = "schedule.name",
           .value = "cosine",
           .choices = {"constant", "linear", "cosine", "wsd"},
           .help = "Shape after the warm-up; wsd: constant, then a decay at the end"},
          {.path = "schedule.warmup_steps",
           .type = Type::integer,
           .value = 0,
           .least = 0,
           .most = kMostSteps,
           .reader = Reader::both,
           .help = "Steps in which the learning rate rises to optimizer.lr"},
          {.path = "schedule.decay_steps",
           .type = Type::integer,
           .least = 1,
           .most = kMostSteps,
           .reader = Reader::both,
           .help = "Steps of the decay",
           .unset = "linear, cosine: all after the warm-up; wsd: the last fifth",
           .needs = "schedule.name",
           .needed = {"linear", "cosine", "wsd"}},
          {.path = "schedule.final_lr_ratio",
           .type = Type::number,
           .value = 0.1,
           .least = 0,
           .most = 1,
           .help = "Learning rate after the decay, as a part of optimizer.lr",
           .needs = "schedule.name",
           .needed = {"linear", "cosine", "wsd"}}};
}

}  // namespace

std::vector<Key> training_keys() {
  std::vector<Key> keys = batch_keys();
  for (auto part : {length_keys, step_keys, optimizer_keys, schedule_keys})
    for (Key& key : part()) keys.push_back(std::move(key));
  return keys;
}

}  // namespace fsdp::config
