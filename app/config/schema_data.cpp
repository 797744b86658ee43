// Keys of the section `data`.
#include "app/config/schema.h"

namespace fsdp::config {

namespace {

std::vector<Key> source_keys() {
  return {
      {.path = "data.format",
       .value = "docs",
       .choices = {"auto", "tokens", "text", "jsonl", "synthetic", "docs"},
       .reader = Reader::both,
       .help = "docs: this project's documentation, built in. If data.train is set, auto: by the file"},
      {.path = "data.train",
       .type = Type::list,
       .reader = Reader::both,
       .help = "A file or a list of files to train on",
       .unset = "none"},
      {.path = "data.validation",
       .type = Type::list,
       .reader = Reader::both,
       .help = "A file or a list of files for evaluation",
       .unset = "validation_fraction of data.train"},
      {.path = "data.validation_fraction",
       .type = Type::number,
       .value = 0.05,
       .least = 0,
       .most = 1,
       .below_most = true,
       .help = "Part of the training data that is kept for evaluation; 0: none"},
      {.path = "data.tokenizer",
       .value = "byte",
       .reader = Reader::both,
       .help = "byte, or a path: tokenizer.json, tiktoken ranks, or a folder with vocab.json and merges.txt"},
      {.path = "data.token_type",
       .value = "auto",
       .choices = {"auto", "uint16", "uint32"},
       .help = "Integers of a token file; auto: as its header says. nanoGPT writes uint16 and no header",
       .needs = "data.format",
       .needed = {"auto", "tokens"}}};
}

std::vector<Key> batch_keys() {
  return {{.path = "data.sequence_length",
           .type = Type::integer,
           .least = 1,
           .most = 1e7,
           .reader = Reader::both,
           .help = "Tokens per sequence",
           .unset = "the model's context"},
          {.path = "data.shuffle",
           .type = Type::flag,
           .value = true,
           .help = "A new order in every epoch, computed from training.seed"},
          {.path = "data.read_ahead",
           .type = Type::integer,
           .value = 2,
           .least = 0,
           .most = 1024,
           .help = "Batches that a thread reads ahead; 0: no thread"},
          {.path = "data.completion_only",
           .type = Type::flag,
           .value = true,
           .help = "Records with prompt and completion: loss on the completion only",
           .needs = "data.format",
           .needed = {"auto", "jsonl"}}};
}

}  // namespace

std::vector<Key> data_keys() {
  std::vector<Key> keys = source_keys();
  for (Key& key : batch_keys()) keys.push_back(std::move(key));
  return keys;
}

}  // namespace fsdp::config
