// Keys of the sections `checkpoint`, `eval`, `logging` and `wandb`.
#include "app/config/schema.h"

namespace fsdp::config {

namespace {

constexpr double kMostSteps = 1e12;

std::vector<Key> checkpoint_keys() {
  return {{.path = "checkpoint.every_steps",
           .type = Type::integer,
           .value = 500,
           .least = 0,
           .most = kMostSteps,
           .help = "Steps between checkpoints; 0: not by steps. The end of the run is always saved"},
          {.path = "checkpoint.every_minutes",
           .type = Type::number,
           .value = 0.0,
           .least = 0,
           .most = 1e6,
           .help = "Minutes between checkpoints; 0: not by time"},
          {.path = "checkpoint.keep_last",
           .type = Type::integer,
           .value = 3,
           .least = 0,
           .most = 1e6,
           .help = "Newest checkpoints to keep; 0: all"},
          {.path = "checkpoint.keep_best",
           .type = Type::flag,
           .value = false,
           .reader = Reader::both,
           .help = "Also keep the one with the lowest evaluation loss"},
          {.path = "checkpoint.background",
           .type = Type::flag,
           .value = true,
           .help = "Training goes on while a checkpoint is written"}};
}

std::vector<Key> eval_keys() {
  return {{.path = "eval.every_steps",
           .type = Type::integer,
           .value = 100,
           .least = 0,
           .most = kMostSteps,
           .reader = Reader::both,
           .help = "Steps between evaluations; 0: none"},
          {.path = "eval.batches",
           .type = Type::integer,
           .value = 10,
           .least = 0,
           .most = kMostSteps,
           .help = "Batches per evaluation; 0: all of the validation data"},
          {.path = "eval.patience",
           .type = Type::integer,
           .value = 0,
           .least = 0,
           .most = 1e6,
           .reader = Reader::both,
           .help = "The run ends after this many evaluations without a lower loss; 0: never"}};
}

std::vector<Key> logging_keys() {
  return {{.path = "logging.debug",
           .type = Type::flag,
           .value = false,
           .help = "Log more, and check order and values in every step"},
          {.path = "logging.log_file",
           .reader = Reader::both,
           .help = "The log of rank 0 is also written to this file",
           .unset = "logs/rank-N.log in the run's folder only"},
          {.path = "logging.every_steps",
           .type = Type::integer,
           .value = 1,
           .least = 1,
           .most = kMostSteps,
           .help = "Steps between lines of metrics"},
          {.path = "logging.tensorboard",
           .type = Type::flag,
           .value = true,
           .help = "Also write TensorBoard's event files"}};
}

std::vector<Key> wandb_keys() {
  const auto only_used = [](Key key) {
    key.needs = "wandb.use_wandb";
    key.needed = {"true"};
    return key;
  };
  return {{.path = "wandb.use_wandb",
           .type = Type::flag,
           .value = false,
           .reader = Reader::both,
           .help = "Send metrics to Weights & Biases; needs Python with wandb"},
          only_used({.path = "wandb.project", .value = "fsdp", .help = "Project"}),
          only_used(
              {.path = "wandb.tags", .type = Type::list, .value = Json::array(), .help = "Tags of the run"}),
          only_used({.path = "wandb.entity", .help = "User or team", .unset = "wandb's default"}),
          only_used({.path = "wandb.mode",
                     .value = "online",
                     .choices = {"online", "offline"},
                     .reader = Reader::both,
                     .help = "offline: written to the disk, sent later by `wandb sync`"})};
}

}  // namespace

std::vector<Key> watching_keys() {
  std::vector<Key> keys = checkpoint_keys();
  for (auto part : {eval_keys, logging_keys, wandb_keys})
    for (Key& key : part()) keys.push_back(std::move(key));
  return keys;
}

}  // namespace fsdp::config
