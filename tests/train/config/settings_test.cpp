// Resolved settings: written and read back, and the config file built in.
#include "app/config/example.h"
#include "train/config/config_fixture.h"

namespace fsdp::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SettingsFile : public ConfigFixture {
 protected:
  // What a run writes resolves to the same values, without a word about differences.
  void expect_read_back(const Settings& settings) const {
    const std::string text = settings.to_yaml();
    const Resolution again = resolved(text, {.stage = settings.stage()});
    EXPECT_THAT(again.problems, IsEmpty()) << text;
    for (const Key& key : schema())
      EXPECT_EQ(again.settings.peek(key.path), settings.peek(key.path)) << key.path << "\n" << text;
    EXPECT_EQ(again.settings.to_yaml().size() > 0, true);
    EXPECT_TRUE(Settings::from_json(Json::parse(settings.to_json().dump())).same_values(settings));
  }
};

TEST_F(SettingsFile, EveryKeyIsReadBack) {
  int count = 0;
  for (const Key& key : schema())
    for (const bool second : {false, true}) {
      const Json value = other_value(key, second);
      if (value.is_null()) continue;
      Request request{.sets = {key.path + "=" + typed(value)}};
      const std::string text = key.section() == "model" ? "data: {sequence_length: 8}\n" : kModel;
      const Resolution made = resolved(text, request);
      if (!made.problems.empty()) continue;
      ++count;
      expect_read_back(made.settings);
    }
  EXPECT_GT(count, 120);
}

TEST_F(SettingsFile, EveryStageAndPresetIsReadBack) {
  for (const char* stage : {"stage1", "stage2"})
    for (const char* preset : {"single_node_fsdp", "multi_node_fsdp", "large_scale_fsdp"})
      for (const char* mode : {"production", "smoke"})
        expect_read_back(settings(example_config(), {.stage = stage, .mode = mode, .fsdp_config = preset}));
}

TEST_F(SettingsFile, OddTextsAreReadBack) {
  for (const std::string text :
       {"true", "True", "NULL", "Infinity", "NaN", "no",  "null", "~",   "1e3",
        "a: b", "# no", "'",    "\"",       "\\",  "[a]", "{",    "yes", "m\xc3\xa4rz",
        " a ",  "-",    "*a",   "&a",       "!a",  "%a",  "@a",   "`a",  ","})
    expect_read_back(settings(kModel, {.sets = {"wandb.project=" + text, "logging.log_file=" + text}}));
  const Settings lists = settings(kModel + "data: {train: ['a b', \"c,d\", 'e: f']}\n");
  EXPECT_THAT(lists.list("data.train"), ElementsAre("a b", "c,d", "e: f"));
  expect_read_back(lists);
}

TEST_F(SettingsFile, NumbersAreNumbersToOtherReadersToo) {
  const std::string text = settings(kModel, {.sets = {"optimizer.lr=1e-7"}}).to_yaml();
  EXPECT_THAT(text, HasSubstr("eps: 1.0e-08 "));
  EXPECT_THAT(text, HasSubstr("lr: 1.0e-07 "));
  EXPECT_THAT(text, HasSubstr("weight_decay: 0.1 "));
}

TEST_F(SettingsFile, OriginsStandBesideTheValues) {
  const std::string text = settings(kModel + "training: {seed: 1}\ndistributed_examples: {p: {timeout: 9}}\n",
                                    {.fsdp_config = "p", .devices = "2", .sets = {"optimizer.lr=0.5"}},
                                    {{"FSDP_SET_eval__batches", "3"}})
                               .to_yaml();
  const auto line_of = [&](const std::string& begin) {
    const size_t at = text.find(begin);
    return at == std::string::npos ? begin + " is missing" : text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_THAT(line_of("seed: 1"), HasSubstr("c.yaml:2"));
  EXPECT_THAT(line_of("timeout: 9"), HasSubstr("c.yaml:3"));
  EXPECT_THAT(line_of("devices: 2"), HasSubstr("# flag --devices"));
  EXPECT_THAT(line_of("lr: 0.5"), HasSubstr("# flag --set optimizer.lr"));
  EXPECT_THAT(line_of("batches: 3"), HasSubstr("# environment FSDP_SET_eval__batches"));
  EXPECT_THAT(line_of("beta1: 0.9"), HasSubstr("# default"));
  EXPECT_THAT(line_of("strategy: fsdp"), HasSubstr("# auto"));
}

TEST_F(SettingsFile, ReadingChecksTheType) {
  const Settings made = settings(kModel);
  EXPECT_THROW(made.integer("training.no_such_key"), std::logic_error);
  EXPECT_THROW(made.integer("optimizer.name"), std::logic_error);
  EXPECT_THROW(made.text("model.script"), std::logic_error);
  EXPECT_EQ(made.number("training.batch_size"), 8);
  EXPECT_FALSE(made.has("model.script"));
  EXPECT_THAT(made.keys_read(), ::testing::Contains("optimizer.name"));
  EXPECT_THROW(Settings::from_json(Json::object()), std::runtime_error);
}

TEST_F(SettingsFile, NamesTheRun) {
  Settings made;
  for (const auto& [file, name] : {std::pair("", "example"),
                                   {"a/b.yaml", "b"},
                                   {"b.c.yaml", "b.c"},
                                   {"/x/.yaml", ".yaml"},
                                   {"plain", "plain"}}) {
    made.set_source("s", file);
    EXPECT_EQ(made.name(), name);
  }
}

class Example : public ConfigFixture {};

struct Preset {
  const char* name;
  int nodes;
  bool offload;
};

TEST_F(Example, PresetsOfDistributed) {
  for (const Preset& preset : {Preset{"single_node_fsdp", 1, false}, Preset{"multi_node_fsdp", 4, true},
                               Preset{"large_scale_fsdp", 8, true}}) {
    const Settings made = settings(kModel, {.fsdp_config = preset.name});
    const auto expect = [&](const std::string& key, const Json& value) {
      EXPECT_EQ(made.peek("distributed." + key), value) << preset.name << " " << key;
      EXPECT_EQ(made.origin("distributed." + key).layer, Layer::preset) << preset.name << " " << key;
    };
    expect("strategy", "fsdp");
    expect("num_nodes", preset.nodes);
    expect("devices", 8);
    expect("fsdp.enabled", true);
    expect("fsdp.sharding_strategy", "FULL_SHARD");
    expect("fsdp.activation_checkpointing", true);
    expect("fsdp.cpu_offload", preset.offload);
    if (preset.nodes < 8) continue;
    expect("fsdp.backward_prefetch", "BACKWARD_PRE");
    expect("fsdp.forward_prefetch", true);
    expect("fsdp.limit_all_gathers", true);
    expect("fsdp.use_orig_params", false);
  }
}

// The parameters that a model with these settings has.
int64_t parameters(const Settings& made) {
  const auto size = [&](const std::string& name) { return made.integer("model_config." + name); };
  const int64_t width = size("hidden_size"), layers = size("num_layers"), vocabulary = size("vocab_size");
  const int64_t heads = size("num_heads");
  const int64_t output = made.flag("model_config.tie_embeddings") ? 0 : vocabulary * width;
  if (made.text("model_config.type") == "gpt2")
    return vocabulary * width + size("context_length") * width + layers * (12 * width * width + 13 * width) +
           2 * width + output;
  const int64_t groups = made.has("model_config.num_kv_heads") ? size("num_kv_heads") : heads;
  const int64_t attention = 2 * width * width + 2 * width * width / heads * groups;
  return vocabulary * width + layers * (attention + 3 * width * size("intermediate_size") + 2 * width) +
         width + output;
}

// Counts that the models' publishers give.
TEST_F(Example, ModelsHaveTheParametersOfTheirPublishers) {
  for (const auto& [name, count] : std::map<std::string, int64_t>{{"gpt2_124M", 124439808},
                                                                  {"gpt2_355M", 354823168},
                                                                  {"gpt2_774M", 774030080},
                                                                  {"gpt2_1.5B", 1557611200},
                                                                  {"1B", 1235814400},
                                                                  {"1.7B", 1711376384},
                                                                  {"3B", 3212749824},
                                                                  {"7B", 6738415616},
                                                                  {"8B", 8030261248},
                                                                  {"70B", 70553706496}})
    EXPECT_EQ(parameters(settings(kModel, {.model_config = "model_config_" + name})), count) << name;
}

TEST_F(Example, HasTwoStagesThatTrainATinyModel) {
  const Resolution made = resolved(example_config());
  EXPECT_THAT(made.stages, ElementsAre("stage1", "stage2"));
  EXPECT_THAT(made.problems, IsEmpty());
  EXPECT_EQ(made.settings.text("model.config"), "model_config_tiny_gpt2");
  EXPECT_THAT(
      resolved(example_config(), {.stage = "stage2", .model_config = "model_config_tiny_llama"}).problems,
      IsEmpty());
}

// The file of REQUIREMENTS that fixes the names.
TEST_F(Example, TheKeysThatUsersKnowAreAccepted) {
  const Settings made = settings(R"(
training_stages:
  stage1:
    distributed:
      strategy: "fsdp"              # auto | fsdp | ddp
      num_nodes: 1
      devices: 8                    # ranks per node; "auto"
      sync_batchnorm: false
      fsdp:
        enabled: true
        cpu_offload: false
        sharding_strategy: "FULL_SHARD"
        backward_prefetch: "BACKWARD_PRE"
        forward_prefetch: false
        limit_all_gathers: true
        activation_checkpointing: true
        use_orig_params: false
    training: {batch_size: 2, gradient_accumulation_steps: 4}
distributed_examples:
  single_node_fsdp: {num_nodes: 1, fsdp: {cpu_offload: false}}
  multi_node_fsdp: {num_nodes: 4, fsdp: {cpu_offload: true}}
logging: {debug: true, log_file: "training.log"}
wandb: {use_wandb: true, project: "a project", tags: ["a", "b"]}
model_config_1.7B: {type: llama, vocab_size: 49152, context_length: 2048, hidden_size: 2048, num_layers: 24, num_heads: 32}
)",
                                 {.fsdp_config = "multi_node_fsdp"});
  EXPECT_EQ(made.ranks(), 32);
  EXPECT_EQ(made.integer("training.global_batch_size"), 256);
  EXPECT_EQ(made.text("model.config"), "model_config_1.7B");
  EXPECT_TRUE(made.flag("distributed.fsdp.cpu_offload"));
}

}  // namespace
}  // namespace fsdp::config
