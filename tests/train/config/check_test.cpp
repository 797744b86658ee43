// Contradictions, values that have no effect, and what follows from the machine, the launcher or the mode.
#include "train/config/config_fixture.h"

namespace fsdp::config {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class Check : public ConfigFixture {
 protected:
  Resolution with(const std::string& text, const Request& request = {},
                  const Machine& machine = {.cores = 2}) const {
    return resolved(kModel + text, request, {}, machine);
  }
  Settings made(const std::string& text, const Request& request = {},
                const Machine& machine = {.cores = 2}) const {
    const Resolution resolution = with(text, request, machine);
    EXPECT_THAT(resolution.problems, IsEmpty()) << text;
    return resolution.settings;
  }
};

TEST_F(Check, DdpIsNoShard) {
  const Settings settings = made("distributed: {strategy: ddp}\n");
  EXPECT_EQ(settings.text("distributed.strategy"), "ddp");
  EXPECT_EQ(settings.text("distributed.fsdp.sharding_strategy"), "NO_SHARD");
  EXPECT_THAT(with("distributed: {strategy: ddp, fsdp: {sharding_strategy: FULL_SHARD}}\n").notes,
              Contains(HasSubstr("has no effect: strategy ddp is NO_SHARD")));
}

TEST_F(Check, AutoIsFsdpAndSaysSo) {
  const Resolution two = with("distributed: {devices: 2}\n");
  EXPECT_EQ(two.settings.text("distributed.strategy"), "fsdp");
  EXPECT_THAT(two.notes, Contains("distributed.strategy: auto is fsdp, since there are 2 ranks"));
  EXPECT_THAT(with("distributed: {devices: 1}\n").notes, Not(Contains(StartsWith("distributed.strategy"))));
  const Resolution off = with("distributed: {devices: 2, fsdp: {enabled: false}}\n");
  EXPECT_EQ(off.settings.text("distributed.strategy"), "ddp");
  EXPECT_THAT(off.notes,
              Contains("distributed.strategy: auto is ddp, since distributed.fsdp.enabled is false"));
}

TEST_F(Check, FsdpThatIsNotEnabledIsRefused) {
  EXPECT_THAT(
      with("distributed:\n  strategy: fsdp\n  fsdp:\n    enabled: false\n").problems,
      ElementsAre(
          "c.yaml:5: distributed.fsdp.enabled: found fsdp.enabled false with distributed.strategy fsdp "
          "(c.yaml:3). Set enabled to true, or the strategy to ddp"));
}

TEST_F(Check, ActivationCheckpointingOfAScriptIsRefused) {
  const std::string text = "model: {script: a.pt}\ndistributed: {fsdp: {activation_checkpointing: true}}\n";
  EXPECT_THAT(resolved(text).problems,
              ElementsAre(AllOf(StartsWith("c.yaml:2: distributed.fsdp.activation_checkpointing: found"),
                                HasSubstr("model.script a.pt (c.yaml:1)"))));
}

TEST_F(Check, AdaptersOfAScriptAreRefused) {
  EXPECT_THAT(
      resolved("model: {script: a.pt}\nlora: {rank: 4}\n").problems,
      ElementsAre(AllOf(StartsWith("c.yaml:2: lora.rank: found 4 with model.script a.pt (c.yaml:1)"))));
}

TEST_F(Check, DevicesOfTheMachine) {
  EXPECT_EQ(made("", {}, {.gpus = 4, .cores = 64}).integer("distributed.devices"), 4);
  EXPECT_EQ(made("", {}, {.cores = 6}).integer("distributed.devices"), 6);
  EXPECT_THAT(with("", {}, {.cores = 6}).notes,
              Contains("distributed.devices: auto is 6, the cores of this machine"));
  EXPECT_THAT(with("distributed: {devices: 8}\n").notes,
              Contains("distributed.devices: this machine has no GPU, so they are 8 CPU ranks"));
  EXPECT_THAT(
      with("distributed: {devices: 8}\n", {.will_start = true}, {.gpus = 2}).problems,
      ElementsAre(AllOf(StartsWith("c.yaml:2: distributed.devices: found 8, expected at most the GPUs"))));
  EXPECT_THAT(with("distributed: {devices: 8}\n", {}, {.gpus = 2}).notes,
              Contains(HasSubstr("8 are more than the GPUs")));
}

TEST_F(Check, OffloadOnCpuRanksSaysThatItChangesNothing) {
  const std::string text = "distributed: {fsdp: {cpu_offload: true}}\n";
  EXPECT_THAT(with(text).notes,
              Contains("distributed.fsdp.cpu_offload true (c.yaml:2) changes nothing on CPU ranks: "
                       "all is in host memory already"));
  EXPECT_THAT(with(text, {}, {.gpus = 2}).notes, Not(Contains(HasSubstr("cpu_offload"))));
}

TEST_F(Check, MomentsFollowBf16True) {
  const std::string narrow = "training: {precision: bf16-true}\n";
  EXPECT_EQ(made(narrow).text("optimizer.moments"), "bf16");
  EXPECT_EQ(made("training: {precision: bf16-mixed}\n").text("optimizer.moments"), "fp32");
  EXPECT_THAT(with(narrow + "optimizer: {moments: fp32}\n").problems,
              ElementsAre(AllOf(StartsWith("c.yaml:3: optimizer.moments: found fp32"),
                                HasSubstr("precision: bf16-mixed"))));
}

TEST_F(Check, AModelConfigNeedsItsSizes) {
  EXPECT_THAT(with("model_config_mine: {type: gpt2, hidden_size: 64}\n").problems,
              ElementsAre("c.yaml:2: model_config_mine: found no vocab_size, context_length, num_layers, "
                          "num_heads, which a model config needs"));
}

TEST_F(Check, SectionsOfTheWholeFileAreNoneOfAStage) {
  EXPECT_THAT(with("training_stages:\n  a:\n    wandb: {use_wandb: true}\n").problems,
              ElementsAre("c.yaml:4: training_stages.a.wandb: found a section of the whole file in a stage, "
                          "expected it at top level"));
}

TEST_F(Check, ALauncherDecidesOnTheRanks) {
  const Resolution made =
      with("distributed: {num_nodes: 4, devices: 8}\n", {}, {.world_size = 6, .local_size = 3});
  EXPECT_EQ(made.settings.integer("distributed.num_nodes"), 2);
  EXPECT_EQ(made.settings.integer("distributed.devices"), 3);
  EXPECT_THAT(made.notes, Contains("distributed.num_nodes: 2 (the launcher) instead of 4 (c.yaml:2)"));
  EXPECT_THAT(made.notes, Contains("distributed.devices: 3 (the launcher) instead of 8 (c.yaml:2)"));
  EXPECT_EQ(made.settings.integer("training.global_batch_size"), 48);
  EXPECT_EQ(with("", {}, {.world_size = 5}).settings.integer("distributed.devices"), 5);
}

// A pod of Kubernetes knows all ranks, and not those of its machine. Slurm may show each rank one GPU.
TEST_F(Check, TheGpusOfARankSayNothingOfTheOtherRanks) {
  const Request starts{.will_start = true};
  EXPECT_THAT(with("distributed: {devices: 2}\n", starts, {.gpus = 1, .world_size = 4}).problems, IsEmpty());
  EXPECT_THAT(with("", starts, {.gpus = 1, .world_size = 16, .local_size = 8}).problems, IsEmpty());
  const Resolution as_written =
      with("distributed: {num_nodes: 2, devices: 2}\n", starts, {.gpus = 1, .world_size = 4});
  EXPECT_EQ(as_written.settings.integer("distributed.num_nodes"), 2) << "nothing contradicts the file";
  EXPECT_EQ(as_written.settings.integer("distributed.devices"), 2);
}

TEST_F(Check, TheGlobalBatchFollowsFromRanks) {
  const Settings settings =
      made("distributed: {devices: 3}\ntraining: {batch_size: 2, gradient_accumulation_steps: 4}\n");
  EXPECT_EQ(settings.integer("training.global_batch_size"), 24);
  EXPECT_EQ(made("distributed: {devices: 3}\ntraining: {batch_size: 2, global_batch_size: 24}\n")
                .integer("training.gradient_accumulation_steps"),
            4);
}

TEST_F(Check, AGlobalBatchThatDoesNotFitIsBlamedOnWhoSetIt) {
  const std::string ranks = "distributed: {devices: 3}\n";
  EXPECT_THAT(with(ranks + "training: {global_batch_size: 16}\n").problems,
              ElementsAre(StartsWith(
                  "c.yaml:3: training.global_batch_size: found a global_batch_size of 16, expected a "
                  "multiple of 24 (batch_size 8 x 3 ranks). These would fit: ")));
  EXPECT_THAT(
      with(ranks + "training: {reproducible: true}\n").problems,
      ElementsAre(
          "c.yaml:2: distributed.devices: found 3 ranks, expected a power of two, as reproducible mode "
          "needs: 2 or 4"));
  EXPECT_THAT(
      with("training:\n  gradient_accumulation_steps: 3\n  reproducible: true\n").problems,
      ElementsAre(StartsWith("c.yaml:3: training.gradient_accumulation_steps: found 6 microbatches")));
  EXPECT_THAT(
      with("training: {batch_size: 65536, gradient_accumulation_steps: 65536}\n").problems,
      ElementsAre(StartsWith("c.yaml:2: training.batch_size: found a global batch of 8589934592 sequences")));
}

TEST_F(Check, AccumulationThatContradictsTheGlobalBatch) {
  const std::string text = "training: {global_batch_size: 32, gradient_accumulation_steps: 3}\n";
  EXPECT_THAT(with(text).notes,
              Contains("training.gradient_accumulation_steps: 2 (from global_batch_size) instead of 3 "
                       "(c.yaml:2)"));
  EXPECT_THAT(
      with("training: {global_batch_size: 32}\n", {.sets = {"training.gradient_accumulation_steps=3"}})
          .problems,
      ElementsAre(AllOf(StartsWith("flag --set training.gradient_accumulation_steps: "),
                        HasSubstr("needs 2. Set one of them only"))));
}

TEST_F(Check, KeysWithoutEffectAreNamed) {
  for (const auto& [text, key] :
       {std::pair("optimizer: {name: sgd, moments: bf16}", "optimizer.moments bf16"),
        {"optimizer: {name: sgd, beta1: 0.5}", "optimizer.beta1 0.5"},
        {"optimizer: {momentum: 0.5}", "optimizer.momentum 0.5"},
        {"schedule: {name: constant, decay_steps: 5}", "schedule.decay_steps 5"},
        {"distributed: {fsdp: {min_num_params: 5}}", "distributed.fsdp.min_num_params 5"},
        {"wandb: {project: p}", "wandb.project p"},
        {"lora: {alpha: 8}", "lora.alpha 8"},
        {"distributed: {sync_batchnorm: true}", "distributed.sync_batchnorm true"}})
    EXPECT_THAT(with(std::string(text) + "\n").notes,
                Contains(AllOf(StartsWith(std::string(key) + " (c.yaml:2)"), HasSubstr("has no effect"))));
  EXPECT_THAT(with("schedule: {name: cosine, decay_steps: 5}\n").notes,
              Not(Contains(HasSubstr("no effect"))));
}

TEST_F(Check, PathsThatDoNotExist) {
  const Request starts{.will_start = true};
  EXPECT_THAT(with("data: {train: [none.txt]}\n", starts).problems,
              ElementsAre(StartsWith("c.yaml:2: data.train: found 'none.txt', which does not exist")));
  EXPECT_THAT(with("data: {train: [none.txt]}\n").problems, IsEmpty()) << "a plan may be made elsewhere";
  write("text", "there.txt");
  for (const std::string& pattern : {path("there.txt"), path("*.txt"), path("")})
    EXPECT_THAT(with("data: {train: '" + pattern + "'}\n", starts).problems, IsEmpty()) << pattern;
  EXPECT_THAT(with("data: {train: '" + path("*.bin") + "'}\n", starts).problems, ::testing::SizeIs(1));
  for (const std::string key : {"training: {init_from: nowhere}", "data: {tokenizer: nowhere}"})
    EXPECT_THAT(with(key + "\n", starts).problems,
                ElementsAre(HasSubstr("found 'nowhere', which does not exist")));
}

TEST_F(Check, FilesReplaceAFormatWithoutFiles) {
  EXPECT_EQ(made("data: {train: a.txt}\n").text("data.format"), "auto");
  EXPECT_EQ(made("data: {train: a.txt, format: jsonl}\n").text("data.format"), "jsonl");
  const Resolution flag = with("data: {format: docs}\n", {.sets = {"data.train=a.txt"}});
  EXPECT_THAT(flag.problems, IsEmpty());
  EXPECT_EQ(flag.settings.text("data.format"), "auto");
  EXPECT_THAT(flag.notes,
              Contains("data.format: auto (since flag --set data.train sets data.train) instead of docs "
                       "(c.yaml:2)"));
  EXPECT_THAT(with("data: {train: a.txt}\n", {.sets = {"data.format=docs"}}).problems, ::testing::SizeIs(1));
}

TEST_F(Check, ModelsReplaceEachOther) {
  const Resolution flag = resolved("model: {script: a.pt}\n", {.model_config = "model_config_1B"});
  EXPECT_THAT(flag.problems, IsEmpty());
  EXPECT_TRUE(flag.settings.peek("model.script").is_null());
  EXPECT_THAT(flag.notes,
              Contains("model.config: model_config_1B (flag --model-config) instead of model.script a.pt "
                       "(c.yaml:1)"));
  EXPECT_THAT(resolved("model: {script: a.pt, pretrained: b}\n").problems,
              ElementsAre(HasSubstr("found a second model")));
  EXPECT_THAT(resolved("model: {config: model_config_13B}\n").problems,
              ElementsAre(AllOf(StartsWith("c.yaml:1: model.config: found an unknown model config"),
                                HasSubstr("did you mean 'model_config_1B'?"))));
  EXPECT_EQ(
      resolved(
          "model_config_a: {type: gpt2, vocab_size: 300, context_length: 8, hidden_size: 4, num_layers: 1, "
          "num_heads: 1}\ndata: {sequence_length: 8}\n")
          .settings.text("model.config"),
      "model_config_a");
}

TEST_F(Check, UnknownNamesComeWithTheNearest) {
  for (const auto& [name, near] : {std::pair("7B", "model_config_7B"),
                                   {"gpt2_124M", "model_config_gpt2_124M"},
                                   {"model_config_1.5B", "model_config_1.7B"}})
    EXPECT_THAT(
        resolved(kModel, {.model_config = name}).problems,
        ElementsAre(AllOf(StartsWith("flag --model-config: model.config: found an unknown model config"),
                          HasSubstr("did you mean '" + std::string(near) + "'?"))));
  EXPECT_THAT(
      resolved("training_stages: {one: {model: {config: model_config_1B}}}\n", {.stage = "on"}).problems,
      ElementsAre("flag --stage: found an unknown stage 'on', expected one, did you mean 'one'?"));
}

TEST_F(Check, SmokeKeepsNothingAndIsShort) {
  const Resolution smoke =
      with("training: {max_steps: 9000}\ndata: {train: [a.txt]}\neval: {patience: 3}\n", {.mode = "smoke"});
  EXPECT_THAT(smoke.problems, IsEmpty());
  EXPECT_EQ(smoke.settings.integer("training.max_steps"), 3);
  EXPECT_EQ(smoke.settings.text("data.format"), "synthetic");
  EXPECT_EQ(smoke.settings.integer("checkpoint.every_steps"), 0);
  EXPECT_THAT(smoke.notes, Contains(StartsWith("mode: smoke keeps nothing, and sets training.max_steps 3")));
  EXPECT_EQ(
      with("", {.mode = "smoke", .sets = {"training.max_steps=7"}}).settings.integer("training.max_steps"),
      7);
  EXPECT_THAT(with("", {.mode = "fast"}).problems,
              ElementsAre(StartsWith("flag --mode: mode: found 'fast'")));
}

TEST_F(Check, FlagsThatContradictEachOther) {
  EXPECT_THAT(with("", {.devices = "2", .sets = {"distributed.devices=3"}}).problems,
              ElementsAre(HasSubstr("found 3, but flag --devices says 2")));
  EXPECT_THAT(with("", {.sets = {"training.batch_size"}}).problems, ElementsAre(HasSubstr("found no `=`")));
  EXPECT_THAT(with("", {.sets = {"batch_size=3"}}).problems,
              ElementsAre(HasSubstr("did you mean 'training.batch_size'?")));
  EXPECT_THAT(resolved(kModel, {}, {{"FSDP_SET_trainin__seed", "3"}}).problems,
              ElementsAre(AllOf(StartsWith("environment FSDP_SET_trainin__seed"),
                                HasSubstr("did you mean 'training.seed'?"))));
}

TEST_F(Check, TopLevelSectionsAreDefaultsOfEveryStage) {
  const std::string text =
      "training: {batch_size: 3, seed: 7}\ntraining_stages:\n  a: {training: {seed: 8}}\n  b: {training: "
      "{batch_size: 5}}\n";
  const Settings a = made(text, {.stage = "a"}), b = made(text, {.stage = "b"}), first = made(text);
  EXPECT_EQ(a.integer("training.batch_size"), 3);
  EXPECT_EQ(a.integer("training.seed"), 8);
  EXPECT_EQ(b.integer("training.batch_size"), 5);
  EXPECT_EQ(b.integer("training.seed"), 7);
  EXPECT_EQ(first.stage(), "a");
  EXPECT_THAT(with(text, {.stage = "c"}).problems,
              ElementsAre(HasSubstr("found an unknown stage 'c', expected a or b")));
}

}  // namespace
}  // namespace fsdp::config
