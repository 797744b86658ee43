// Every key of the schema: what it is, that setting it has an effect, and who wins where it is set twice.
#include <cctype>
#include <cmath>
#include <regex>
#include <set>

#include "app/config/explain.h"
#include "app/config/layers.h"
#include "train/config/config_fixture.h"

namespace fsdp::config {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Keys : public ConfigFixture {
 protected:
  // A file with a model config of its own, in which `key` has `value`; `outer` is a section such as
  // training_stages.s.
  static std::string file(const Key& key, const Json& value, const std::string& outer = "") {
    const std::string model =
        "model_config_mine: {type: llama, vocab_size: 257, context_length: 256, "
        "hidden_size: 128, num_layers: 2, num_heads: 4";
    const std::string chosen = key.section() == "model" ? "" : "model: {config: model_config_mine}\n";
    if (key.section() != kModelConfig) return chosen + model + "}\n" + nested(outer + key.path, value) + "\n";
    const std::string line = key.name() + ": " + value.dump();
    const std::regex old(key.name() + ": \\w+");
    return chosen +
           (std::regex_search(model, old) ? std::regex_replace(model, old, line) : model + ", " + line) +
           "}\n";
  }
  static bool in_stage(const Key& key) {
    return std::count(stage_sections().begin(), stage_sections().end(),
                      key.path.substr(0, key.path.find('.'))) > 0;
  }
};

TEST_F(Keys, DefaultsFitTheirOwnKey) {
  for (const Key& key : schema()) {
    if (key.value.is_null()) continue;
    const Parsed parsed = parse_typed(key, shown(key.value));
    EXPECT_EQ(parsed.problem, "") << key.path;
    EXPECT_EQ(parsed.value, key.value) << key.path;
  }
}

TEST_F(Keys, BoundsAreAllowedOrRefusedAsTheySay) {
  for (const Key& key : schema()) {
    if (key.type != Type::integer && key.type != Type::number) continue;
    EXPECT_TRUE(std::isfinite(key.least) && std::isfinite(key.most)) << key.path;
    const auto accepts = [&](double value) {
      const Json number = key.type == Type::integer ? Json(static_cast<int64_t>(value)) : Json(value);
      return parse_typed(key, number.dump()).problem.empty();
    };
    const double step = key.type == Type::integer ? 1 : 1e-6;
    EXPECT_EQ(accepts(key.least), !key.above_least) << key.path;
    EXPECT_EQ(accepts(key.most), !key.below_most) << key.path;
    EXPECT_FALSE(accepts(key.least - step)) << key.path;
    EXPECT_FALSE(accepts(key.most + std::max(step, key.most * 1e-6))) << key.path;
  }
}

TEST_F(Keys, AreDescribed) {
  std::set<std::string> paths;
  for (const Key& key : schema()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path << " is there twice";
    EXPECT_FALSE(key.help.empty()) << key.path;
    EXPECT_NE(key.help.back(), '.') << key.path;
    EXPECT_EQ(key.can_be_unset(), !key.unset.empty())
        << key.path << ": a key without a default says what holds";
    EXPECT_TRUE(key.section().empty() || !section_help(key.section()).empty()) << key.section();
    if (key.needs.empty()) continue;
    const Key* needed = find_key(key.needs);
    ASSERT_NE(needed, nullptr) << key.path;
    for (const std::string& value : key.needed)
      EXPECT_EQ(parse_typed(*needed, value).problem, "") << key.path;
  }
}

TEST_F(Keys, AreExplained) {
  const std::string all = *explain(""), markdown = explain_in_markdown();
  for (const Key& key : schema()) {
    EXPECT_THAT(all, HasSubstr("  " + key.path + "  ")) << key.path;
    EXPECT_THAT(markdown, HasSubstr("| `" + key.name() + "` |"));
    const auto one = explain(key.path);
    ASSERT_TRUE(one) << key.path;
    for (const std::string& part : {key.help, expected(key)}) EXPECT_THAT(*one, HasSubstr(part));
  }
  EXPECT_EQ(explain("model_config_7B.num_heads"), explain("model_config.num_heads"));
  EXPECT_EQ(explain("trainin"), std::nullopt);
  EXPECT_THAT(unknown_key("batch_size"), HasSubstr("did you mean 'training.batch_size'?"));
  EXPECT_THAT(unknown_key("trainin"), HasSubstr("did you mean 'training'?"));
}

// Whether `key` has the value in what was resolved; or the value is refused, with a problem that names the
// key.
void expect_effect(const Resolution& made, const Key& key, const Json& value, const std::string& how) {
  if (made.problems.empty()) {
    EXPECT_EQ(made.settings.peek(key.path), value) << how;
    EXPECT_TRUE(made.settings.is_given(key.path)) << how;
    return;
  }
  EXPECT_THAT(made.problems, Contains(HasSubstr(key.name()))) << how;
}

TEST_F(Keys, SetInAFileTakeEffect) {
  int accepted = 0;
  for (const Key& key : schema()) {
    const Json value = other_value(key);
    const Resolution made = resolved(file(key, value));
    expect_effect(made, key, value, file(key, value));
    if (made.problems.empty()) ++accepted;
    if (in_stage(key)) expect_effect(resolved(file(key, value, "training_stages.s.")), key, value, key.path);
  }
  EXPECT_GT(accepted, static_cast<int>(schema().size()) * 3 / 4);
}

TEST_F(Keys, SetByFlagOrEnvironmentTakeEffect) {
  const Key& neutral = *find_key("training.seed");
  for (const Key& key : schema()) {
    if (key.section() == "model") continue;
    const Json value = other_value(key);
    const std::string text = file(neutral, 1);
    expect_effect(resolved(text, {.sets = {key.path + "=" + typed(value)}}), key, value, "--set " + key.path);
    expect_effect(resolved(text, {}, {{variable_of(key), typed(value)}}), key, value, variable_of(key));
  }
}

// One way to set a key: adds it to the file, the flags or the environment.
struct Asked {
  std::string text;
  Request request = {};
  Environment environment = {};

  void set(const Key& key, const Json& value, Layer layer) {
    switch (layer) {
      case Layer::argument:
        request.defaults = {key.path + "=" + typed(value)};
        break;
      case Layer::section:
        text += nested(key.path, value) + "\n";
        break;
      case Layer::stage:
        text += nested("training_stages.s." + key.path, value) + "\n";
        break;
      case Layer::preset:
        text += nested("distributed_examples.p." + key.path.substr(key.path.find('.') + 1), value) + "\n";
        request.fsdp_config = "p";
        break;
      case Layer::environment:
        environment[variable_of(key)] = typed(value);
        break;
      default:
        request.sets = {key.path + "=" + typed(value)};
    }
  }
};

// Lines that say that `higher` won over `lower`.
int lines_of(const Resolution& made, const std::string& key, const Json& higher, const Json& lower) {
  const std::string begin = key + ": " + shown(higher) + " (", end = ") instead of " + shown(lower) + " (";
  return static_cast<int>(std::count_if(made.notes.begin(), made.notes.end(), [&](const std::string& note) {
    return note.starts_with(begin) && note.find(end) != std::string::npos;
  }));
}

TEST_F(Keys, TheLaterLayerWinsAndOneLineSaysSo) {
  const std::vector<Layer> layers{Layer::argument, Layer::section,     Layer::stage,
                                  Layer::preset,   Layer::environment, Layer::flag};
  for (const Key& key : schema()) {
    if (!in_stage(key) || key.section() == "model") continue;
    const Json lower = other_value(key, true), higher = other_value(key);
    ASSERT_NE(lower, higher) << key.path;
    for (size_t low = 0; low < layers.size(); ++low)
      for (size_t high = low + 1; high < layers.size(); ++high) {
        const bool has_preset = layers[low] == Layer::preset || layers[high] == Layer::preset;
        if (has_preset && !key.path.starts_with("distributed.")) continue;
        Asked asked{.text = kModel};
        asked.set(key, lower, layers[low]);
        asked.set(key, higher, layers[high]);
        const Resolution made = resolved(asked.text, asked.request, asked.environment);
        const std::string what =
            asked.text + key.path + ", layers " + std::to_string(low) + " and " + std::to_string(high);
        EXPECT_EQ(made.settings.peek(key.path), higher) << what;
        EXPECT_EQ(made.settings.origin(key.path).layer, layers[high]) << what;
        const bool stage_over_section = layers[low] == Layer::section && layers[high] == Layer::stage;
        EXPECT_EQ(lines_of(made, key.path, higher, lower), stage_over_section ? 0 : 1) << what;
      }
  }
}

TEST_F(Keys, EqualValuesNeedNoLine) {
  const Resolution made = resolved(kModel + "optimizer: {lr: 0.5}\n", {.sets = {"optimizer.lr=0.5"}});
  EXPECT_EQ(lines_of(made, "optimizer.lr", 0.5, 0.5), 0);
  EXPECT_EQ(made.settings.origin("optimizer.lr").text, "flag --set optimizer.lr");
}

}  // namespace
}  // namespace fsdp::config
