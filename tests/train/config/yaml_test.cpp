// Files that are odd, broken or made to harm: refused with file and line, or read as meant.
#include "train/config/config_fixture.h"

namespace fsdp::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class Yaml : public ConfigFixture {
 protected:
  // The one problem of `text`.
  std::string problem(const std::string& text) const {
    const std::vector<std::string> all = resolved(text).problems;
    EXPECT_THAT(all, SizeIs(1)) << text;
    return all.empty() ? "" : all.front();
  }
  // What a file with this value of an integer, 8 by default, says; "" if it is accepted.
  std::string integer(const std::string& value) const {
    const std::vector<std::string> all = problems("training:\n  batch_size: " + value + "\n");
    return all.empty() ? "" : all.front();
  }
  std::string number(const std::string& value) const {
    const std::vector<std::string> all = problems("optimizer:\n  weight_decay: " + value + "\n");
    return all.empty() ? "" : all.front();
  }
};

TEST_F(Yaml, IntegersAreDecimalDigits) {
  for (const char* value : {"4", "+4", " 4 ", "4 # four", "&four 4", "!!int 4", "65536"})
    EXPECT_EQ(integer(value), "");
  for (const char* value :
       {"1e3", "4.0",   ".5", "inf",  ".inf", "nan",    ".nan", "1_000",      "0x10",
        "0o7", "010",   "-4", "0",    "-0",   "4#four", "1:30", "2024-01-01", "99999999999999999999",
        "'4'", "\"4\"", "~",  "null", "",     "yes",    "[4]",  "{a: 4}"})
    EXPECT_THAT(integer(value), AllOf(StartsWith("c.yaml:3: training.batch_size: found "),
                                      HasSubstr("expected an integer from 1 to 65536")));
  EXPECT_THAT(integer("'4'"), HasSubstr("a number stands without quotes"));
  EXPECT_THAT(integer("08"), HasSubstr("begins with no 0"));
}

TEST_F(Yaml, NumbersAreFiniteDecimals) {
  for (const char* value : {"1e-3", ".5", "5.", "+0.5", "0", "-0.0", "0.0", "1E2", "0.01"})
    EXPECT_EQ(number(value), "");
  for (const char* value : {"inf", "-inf", ".inf", "nan", ".NaN", "infinity", "1e400", "1_0", "1d3", "0x1p-3",
                            "1,5", "1/3", "00.1", "'0.1'", "true", "fast", "-1e-9", "1000.001"})
    EXPECT_THAT(number(value), AllOf(StartsWith("c.yaml:3: optimizer.weight_decay: found "),
                                     HasSubstr("expected a number")));
}

TEST_F(Yaml, FlagsAreTrueOrFalse) {
  for (const char* value : {"true", "TRUE", "False"})
    EXPECT_THAT(problems("logging:\n  debug: " + std::string(value) + "\n"), ElementsAre());
  for (const auto& [value, meant] : {std::pair("yes", "true"),
                                     {"on", "true"},
                                     {"1", "true"},
                                     {"no", "false"},
                                     {"off", "false"},
                                     {"0", "false"},
                                     {"treu", "true"}})
    EXPECT_THAT(problem(kModel + "logging:\n  debug: " + value + "\n"),
                AllOf(StartsWith("c.yaml:3: logging.debug: found "),
                      HasSubstr("did you mean '" + std::string(meant) + "'?")));
  EXPECT_THAT(problem(kModel + "logging: {debug: 'true'}\n"), HasSubstr("found the text 'true'"));
}

TEST_F(Yaml, TextsThatLookLikeNumbersNeedQuotes) {
  EXPECT_THAT(problem(kModel + "wandb: {project: 12}\n"), HasSubstr("put it in quotes"));
  EXPECT_THAT(problems("wandb: {project: '12', tags: [a, b-2]}\n"), ElementsAre());
  EXPECT_THAT(problem(kModel + "wandb: {tags: [a, 3]}\n"), HasSubstr("wandb.tags: found 3"));
  EXPECT_THAT(problem(kModel + "data: {train: []}\n"), HasSubstr("data.train: found an empty list"));
  EXPECT_THAT(problem(kModel + "data: {train: [[a]]}\n"), HasSubstr("data.train: found a list in the list"));
  EXPECT_THAT(problem(kModel + "logging:\n  log_file: |\n    a\n    b\n"),
              HasSubstr("c.yaml:3: logging.log_file"));
  EXPECT_THAT(problems("training: {precision: 32}\n"), ElementsAre()) << "a choice may stand without quotes";
}

TEST_F(Yaml, NullLeavesAKeyUnset) {
  EXPECT_THAT(problems("data: {train: null}\ntraining: {global_batch_size: ~, max_steps:}\n"), ElementsAre());
}

TEST_F(Yaml, WholeFileOfAnotherKind) {
  for (const std::string text : {"", "# nothing\n", "---\n", "\n\n"})
    EXPECT_THAT(problem(text), StartsWith("c.yaml:1: model.config: found no model"));
  EXPECT_THAT(problem("- a\n- b\n"), StartsWith("c.yaml:1: found a list"));
  EXPECT_THAT(problem("hello\n"), StartsWith("c.yaml:1: hello: found neither"));
  EXPECT_THAT(problem("'training'\n"), StartsWith("c.yaml:1: "));
  EXPECT_THAT(problem(kModel + "---\nmodel: {}\n"), StartsWith("c.yaml:3: found a second document"));
  EXPECT_THAT(problems("...\n"), ElementsAre());
}

TEST_F(Yaml, BytesThatAreNoText) {
  EXPECT_THAT(problem(kModel + "wandb: {project: \"a\xff\"}\n"),
              StartsWith("c.yaml:2: found bytes that are not UTF-8"));
  EXPECT_THAT(problem(std::string("a: b\nc: \0d\n", 11)), StartsWith("c.yaml:2: found bytes"));
  EXPECT_THAT(problem(std::string("\xff\xfem\0o\0", 6)), StartsWith("c.yaml:1: found bytes"));
  EXPECT_THAT(problem(kModel + "wandb: {project: \"a\\x1b[31m\"}\n"), StartsWith("c.yaml:2: wandb.project"));
  for (const std::string line : {"# comment\n", "training: {seed: 1}\n"})
    EXPECT_THAT(resolved("\xef\xbb\xbf" + line + kModel).problems, ElementsAre()) << "a byte order mark";
  EXPECT_THAT(problems("wandb: {project: m\xc3\xa4rz}\n"), ElementsAre());
}

TEST_F(Yaml, LineEndsOfWindows) {
  EXPECT_EQ(settings("model: {config: model_config_tiny_gpt2}\r\ntraining:\r\n  batch_size: 4\r\n")
                .integer("training.batch_size"),
            4);
  EXPECT_THAT(problem(kModel + "training:\r\n  batch_sise: 4\r\n"),
              StartsWith("c.yaml:3: training.batch_sise"));
}

TEST_F(Yaml, AnchorsRepeatASection) {
  const std::string text =
      "training_stages:\n  a:\n    training: &t {batch_size: 4}\n  b:\n    training: *t\n";
  EXPECT_EQ(settings(kModel + text, {.stage = "b"}).integer("training.batch_size"), 4);
  EXPECT_THAT(problem(kModel + "training: {batch_size: *nothing}\n"),
              StartsWith("c.yaml:2: training: this is not YAML"));
  EXPECT_THAT(problem(kModel + "training: &t\n  batch_size: *t\n"), HasSubstr("without end"));
  EXPECT_THAT(problems("training: &t {batch_size: 4}\ntraining_stages:\n  s:\n    training:\n      <<: *t\n"),
              ElementsAre(AllOf(StartsWith("c.yaml:6: training_stages.s.training.<<: found a merge key"))));
}

TEST_F(Yaml, DuplicatesAreFoundEverywhere) {
  EXPECT_THAT(
      problem(kModel + "training: {batch_size: 4, batch_size: 5}\n"),
      StartsWith("c.yaml:2: training.batch_size: found a second time in its section, first in line 2"));
  EXPECT_THAT(problem(kModel + "training: {\n  batch_size: 4,\n  'batch_size': 4}\n"),
              StartsWith("c.yaml:4: training.batch_size"));
  EXPECT_THAT(problem(kModel + kModel), StartsWith("c.yaml:2: model: found a second time"));
  EXPECT_THAT(problem(kModel + "training_stages: {a: {}, a: {}}\n"),
              StartsWith("c.yaml:2: training_stages.a: found a second"));
  EXPECT_THAT(problem(kModel + "distributed_examples: {a: {}, a: {}}\n"),
              StartsWith("c.yaml:2: distributed_examples.a"));
}

TEST_F(Yaml, KeysWithDots) {
  EXPECT_THAT(problem(kModel + "training.batch_size: 4\n"),
              AllOf(StartsWith("c.yaml:2: training.batch_size: found an unknown key"),
                    HasSubstr("Write `training:`, and below it `batch_size:`")));
  EXPECT_THAT(problem(kModel + "model_config.type: gpt2\n"),
              StartsWith("c.yaml:2: model_config.type: found an unknown key"));
  EXPECT_THAT(problem(kModel + "training: {'batch_size.x': 4}\n"), HasSubstr("did you mean 'batch_size'?"));
}

TEST_F(Yaml, KeysThatAreNoWords) {
  EXPECT_THAT(problem(kModel + "? [a, b]\n: 3\n"), StartsWith("c.yaml:2: found a key that is not a word"));
  EXPECT_THAT(problem(kModel + "~: 3\n"), HasSubstr("found a key that is not a word"));
  EXPECT_THAT(problem(kModel + "training_stages: {../x: {}}\n"),
              HasSubstr("with other characters than letters"));
  EXPECT_THAT(problem(kModel + "model_config_: {}\n"), HasSubstr("model_config_: found an unknown key"));
  EXPECT_THAT(problem(kModel + "small: {}\n"), HasSubstr("expected one there: training_stages"));
  EXPECT_THAT(problem(kModel + "small: {}\n"), HasSubstr(", model_config_NAME,"));
  EXPECT_THAT(problem(kModel + std::string(5000, 'x') + ": 3\n"), StartsWith("c.yaml:2: xxx"));
}

TEST_F(Yaml, SectionsWithoutKeys) {
  for (const char* name : {"training_stages", "distributed_examples", "training", "model_config_x"}) {
    EXPECT_THAT(problem(kModel + name + ":\n"),
                StartsWith("c.yaml:2: " + std::string(name) + ": found no keys below it"));
    EXPECT_THAT(problem(kModel + name + ": [a]\n"),
                StartsWith("c.yaml:2: " + std::string(name) + ": found a list"));
    EXPECT_THAT(problem(kModel + name + ": a\n"),
                StartsWith("c.yaml:2: " + std::string(name) + ": found 'a'"));
  }
}

TEST_F(Yaml, IndentationNamesTheLineThatIsWrong) {
  const std::string begin = kModel + "training:\n  batch_size: 4\n";
  EXPECT_THAT(problem(begin + "   seed: 1\n  max_steps: 3\n"),
              AllOf(StartsWith("c.yaml:4: seed: found an indentation of 3 spaces, expected 2 spaces")));
  EXPECT_THAT(problem(begin + " seed: 1\n"),
              StartsWith("c.yaml:4: seed: found an indentation of 1 space, expected that"));
  EXPECT_THAT(problem(begin + "\tseed: 1\n"), StartsWith("c.yaml:4: seed: found a tab in the indentation"));
  EXPECT_THAT(problem(begin + "  seed:1\n"), StartsWith("c.yaml:4: seed: found no space after the colon"));
  EXPECT_THAT(problem(begin + "  seed\n"), StartsWith("c.yaml:4: seed: found neither"));
  EXPECT_THAT(problems("training:\n        batch_size: 4\n"), ElementsAre()) << "any depth will do";
}

TEST_F(Yaml, BracketsAndQuotesThatStayOpen) {
  EXPECT_THAT(problem(kModel + "data: {train: [a, b\n"),
              StartsWith("c.yaml:2: data: found a bracket that is never closed"));
  EXPECT_THAT(resolved(kModel + "data: {train: \"a\n").problems.front(),
              StartsWith("c.yaml:2: data: found a quote that is not closed"));
  EXPECT_THAT(problem(kModel + "data: {train: a]}\n"), StartsWith("c.yaml:2: data: this is not YAML"));
}

TEST_F(Yaml, FilesMadeToHarm) {
  std::string laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n", last = "a";
  for (const std::string name : {"b", "c", "d", "e", "f", "g", "h", "i"}) {
    laughs += name + ": &" + name + " [*" + last;
    for (int i = 0; i < 9; ++i) laughs += ", *" + last;
    laughs += "]\n";
    last = name;
  }
  EXPECT_THAT(problem(laughs), HasSubstr("nested or repeated by aliases without end"));
  EXPECT_THAT(problem("a: " + std::string(100000, '[') + std::string(100000, ']') + "\n"),
              StartsWith("c.yaml:1: a: found brackets nested without end"));
  std::string deep;
  for (size_t i = 0; i < 600; ++i) deep += std::string(i, ' ') + "a:\n";
  EXPECT_THAT(problem(deep), StartsWith("c.yaml:"));
  EXPECT_THAT(problem(std::string(2 << 20, '#')), HasSubstr("c.yaml: found more than 1 MiB"));
}

TEST_F(Yaml, FilesThatCannotBeRead) {
  const auto problem_of = [](const std::string& file) {
    const std::vector<std::string> all = resolve({.config = file}, {}).problems;
    return all.empty() ? "" : all.front();
  };
  EXPECT_THAT(problem_of(path("")), HasSubstr("cannot be read: Is a directory"));
  EXPECT_THAT(problem_of(path("none.yaml")),
              HasSubstr("none.yaml: cannot be read: No such file or directory"));
  EXPECT_THAT(problem_of(""), StartsWith("flag --config: found an empty text"));
  EXPECT_THAT(problem_of("/dev/zero"), HasSubstr("found more than 1 MiB"));
}

TEST_F(Yaml, AllProblemsAtOnce) {
  const std::string text =
      "traning: {seed: 1}\ntraining:\n  batch_size: 0\n  batch_size: 4\n  seed: many\nmodel_config_x: {type: "
      "gpt3}\n";
  EXPECT_THAT(
      resolved(kModel + text, {.stage = "s9", .fsdp_config = "none", .sets = {"a.b=1", "training.seed=x"}})
          .problems,
      SizeIs(::testing::Ge(9)));
}

}  // namespace
}  // namespace fsdp::config
