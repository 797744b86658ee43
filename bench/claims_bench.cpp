// The runs behind `bench/run claims`. Each prints one JSON line.
//
// Usage: claims_bench train --ranks 4 --strategy no_shard --memory
//        claims_bench equal --ranks 4 --data split
//        claims_bench learn --ranks 4
//        claims_bench devices
// What they measure is in bench/README.md.
#include <fsdp/version.h>
#include <torch/cuda.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "bench/claims/small_runs.h"
#include "bench/claims/train.h"

namespace {

template <class Settings>
void add_common(CLI::App& app, Settings& settings) {
  app.add_option("--device", settings.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--ranks", settings.ranks, "processes to start")->check(CLI::Range(1, 64));
}

void add_strategy(CLI::App& app, std::string& strategy) {
  app.add_option("--strategy", strategy, "sharding strategy")
      ->check(CLI::IsMember({"full_shard", "shard_grad_op", "no_shard"}));
}

void add_train(CLI::App& app, bench::TrainSettings& settings) {
  add_common(app, settings);
  add_strategy(app, settings.strategy);
  app.add_option("--dim", settings.dim, "hidden size, a multiple of twice the heads");
  app.add_option("--inner", settings.inner, "width of the MLP; 0: 8/3 of --dim, rounded up");
  app.add_option("--layers", settings.layers, "decoder layers");
  app.add_option("--heads", settings.heads, "heads of attention");
  app.add_option("--vocab", settings.vocab, "tokens there are");
  app.add_option("--batch", settings.batch, "sequences per rank");
  app.add_option("--seq", settings.seq, "tokens of a sequence");
  app.add_option("--steps", settings.steps, "timed steps")->check(CLI::PositiveNumber);
  app.add_option("--warmup", settings.warmup, "steps before them")->check(CLI::NonNegativeNumber);
  app.add_flag("--bf16", settings.bf16, "compute in bf16, reduce and keep weights in fp32");
  app.add_option("--prefetch", settings.prefetch, "backward_prefetch, with all-gathers that move bytes")
      ->check(CLI::IsMember({"pre", "post", "none"}));
  app.add_option("--keep-every", settings.keep_every,
                 "every k-th decoder layer stays gathered from forward to backward; 0: none");
  app.add_option("--recompute", settings.recompute,
                 "activation checkpointing of every k-th decoder layer; 0: none");
  app.add_flag("--memory", settings.memory, "measure memory instead of time");
}

void add_equal(CLI::App& app, bench::EqualSettings& settings) {
  add_common(app, settings);
  app.add_option("--data", settings.data, "whole batch, or this rank's part of it")
      ->check(CLI::IsMember({"same", "split", "reproducible"}));
  app.add_option("--steps", settings.steps, "steps of SGD")->check(CLI::PositiveNumber);
}

void add_learn(CLI::App& app, bench::LearnSettings& settings) {
  add_common(app, settings);
  add_strategy(app, settings.strategy);
  app.add_option("--steps", settings.steps, "steps of AdamW")->check(CLI::PositiveNumber);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures what the literature claims of sharded training; prints one JSON line.");
  app.require_subcommand(1);
  bench::TrainSettings training;
  bench::EqualSettings equal;
  bench::LearnSettings learning;
  auto* train = app.add_subcommand("train", "steps of a Llama: bytes, times and communication");
  auto* compare = app.add_subcommand("equal", "parameters against those of a plain loop");
  auto* learn = app.add_subcommand("learn", "a loss that falls on data that differs from rank to rank");
  auto* devices = app.add_subcommand("devices", "counts the GPUs");
  add_train(*train, training);
  add_equal(*compare, equal);
  add_learn(*learn, learning);
  CLI11_PARSE(app, argc, argv);
  try {
    if (train->parsed()) bench::train(training);
    if (compare->parsed()) bench::compare_with_plain_loop(equal);
    if (learn->parsed()) bench::learn(learning);
    if (devices->parsed())
      std::printf("{\"bench\":\"claims\",\"program\":\"devices\",\"cuda\":%d,\"version\":\"%s\"}\n",
                  static_cast<int>(torch::cuda::device_count()), fsdp::version());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "claims_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
