#include "layout/units.h"

#include <gmock/gmock.h>

#include <map>
#include <random>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using namespace detail;
using ::testing::ElementsAre;

// Builds trees with ids in order of definition.
class Tree {
 public:
  ModuleDecl leaf(const std::string& path, const std::string& type,
                  std::vector<std::vector<int64_t>> shapes) {
    ModuleDecl module{.path = path, .type = type, .params = {}, .children = {}};
    for (auto& shape : shapes) {
      const std::string name = path + ".p" + std::to_string(module.params.size());
      module.params.push_back(
          {.id = next_++, .name = name, .shape = std::move(shape), .type = {}, .trainable = true});
    }
    return module;
  }

  // Embedding, blocks of two linears, norm, head: like a small GPT.
  ModuleDecl gpt(int blocks) {
    ModuleDecl root{.path = "", .type = "GPTImpl", .params = {}, .children = {}};
    root.children.push_back(leaf("wte", "EmbeddingImpl", {{100, 16}}));
    ModuleDecl list{.path = "h", .type = "ModuleListImpl", .params = {}, .children = {}};
    for (int i = 0; i < blocks; ++i) {
      const std::string path = "h." + std::to_string(i);
      ModuleDecl block{.path = path, .type = "BlockImpl", .params = {}, .children = {}};
      block.children.push_back(leaf(path + ".norm", "LayerNormImpl", {{16}, {16}}));
      block.children.push_back(leaf(path + ".fc", "LinearImpl", {{64, 16}, {64}}));
      block.children.push_back(leaf(path + ".proj", "LinearImpl", {{16, 64}, {16}}));
      list.children.push_back(std::move(block));
    }
    root.children.push_back(std::move(list));
    root.children.push_back(leaf("norm", "LayerNormImpl", {{16}, {16}}));
    root.children.push_back(leaf("head", "LinearImpl", {{100, 16}}));
    return root;
  }

 private:
  ParamId next_ = 0;
};

std::vector<std::string> names(const std::vector<UnitDecl>& units) {
  std::vector<std::string> all;
  for (const UnitDecl& unit : units) all.push_back(unit.name);
  return all;
}

TEST(Units, NoneIsOneUnit) {
  EXPECT_THAT(names(make_units(Tree().gpt(2), wrap_none())), ElementsAre("root"));
}

TEST(Units, ByTypeTakesBlocksAndLeavesTheRestToTheRoot) {
  const auto units = make_units(Tree().gpt(2), wrap_by_type({"BlockImpl"}));
  EXPECT_THAT(names(units), ElementsAre("root", "h.0", "h.1"));
  EXPECT_EQ(units[0].params.size(), 4u) << "embedding, norm, head";
  EXPECT_EQ(units[1].params.size(), 6u);
}

TEST(Units, BySizeWrapsTheSmallestModulesThatAreLargeEnough) {
  const auto units = make_units(Tree().gpt(2), wrap_by_size(1000));
  EXPECT_THAT(names(units), ElementsAre("wte", "root", "h.0.fc", "h.0.proj", "h.1.fc", "h.1.proj", "head"));
}

TEST(Units, AutomaticFindsRepeatedBlocksAndTheirLargeNeighbours) {
  const ModuleDecl root = Tree().gpt(3);
  EXPECT_THAT(names(make_units(root, wrap_automatic(root))),
              ElementsAre("wte", "h.0", "h.1", "h.2", "root", "head"));
}

TEST(Units, AutomaticLeavesAModelWithoutBlocksWhole) {
  Tree tree;
  ModuleDecl root{.path = "", .type = "NetImpl", .params = {}, .children = {}};
  root.children.push_back(tree.leaf("a", "LinearImpl", {{8, 8}}));
  root.children.push_back(tree.leaf("b", "LinearImpl", {{8, 4}}));
  EXPECT_THAT(names(make_units(root, wrap_automatic(root))), ElementsAre("root"));
}

TEST(Units, TiedParametersBelongToTheFirstUnit) {
  ModuleDecl root = Tree().gpt(2);
  root.children.back().params[0].id = root.children.front().params[0].id;
  const auto units = make_units(root, wrap_by_type({"EmbeddingImpl", "LinearImpl"}));
  EXPECT_EQ(units.front().name, "wte");
  for (const UnitDecl& unit : units) EXPECT_NE(unit.name, "head") << "it has nothing of its own left";
}

TEST(Units, IgnoredParametersAreInNoUnit) {
  const auto units = make_units(Tree().gpt(1), wrap_none(), {0});
  for (const ParamDecl& param : units[0].params) EXPECT_NE(param.id, 0);
}

TEST(Units, SmallNeighboursAreJoinedAndLargeUnitsCut) {
  const auto units = make_units(Tree().gpt(2), wrap_by_size(1));
  const auto joined = resize_units(units, {.min_bytes = 4096, .max_bytes = 0});
  EXPECT_LT(joined.size(), units.size());
  EXPECT_EQ(joined.front().name.find("wte"), 0u);
  const auto cut = resize_units(make_units(Tree().gpt(2), wrap_none()), {.min_bytes = 0, .max_bytes = 7000});
  EXPECT_GT(cut.size(), 2u);
  EXPECT_EQ(cut[1].name, "root#1");
  for (const UnitDecl& unit : cut) EXPECT_TRUE(unit.bytes() <= 7000 || unit.params.size() == 1) << unit.name;
}

ModuleDecl random_tree(std::mt19937& random, ParamId& next, int depth, const std::string& path) {
  ModuleDecl module{.path = path, .type = "T" + std::to_string(random() % 3), .params = {}, .children = {}};
  for (size_t i = random() % 3; i > 0; --i) {
    const bool tied = next > 0 && random() % 6 == 0;
    const ParamId id = tied ? static_cast<ParamId>(random() % static_cast<unsigned>(next)) : next++;
    module.params.push_back({.id = id,
                             .name = "p",
                             .shape = {static_cast<int64_t>(1 + random() % 50)},
                             .type = {},
                             .trainable = true});
  }
  if (depth == 0) return module;
  for (size_t i = random() % 4; i > 0; --i)
    module.children.push_back(
        random_tree(random, next, depth - 1, path + (path.empty() ? "" : ".") + std::to_string(i)));
  return module;
}

TEST(UnitsProperty, EveryParameterIsInExactlyOneUnit) {
  std::mt19937 random(seed());
  for (int round = repeats(200, 5000); round > 0; --round) {
    ParamId next = 0;
    const ModuleDecl root = random_tree(random, next, 4, "");
    const WrapPolicy policies[] = {wrap_none(), wrap_by_size(static_cast<int64_t>(random() % 100)),
                                   wrap_by_type({"T1"}), wrap_automatic(root)};
    const UnitSizes sizes{.min_bytes = static_cast<int64_t>(random() % 300),
                          .max_bytes = random() % 2 ? static_cast<int64_t>(300 + random() % 300) : 0};
    for (const WrapPolicy& policy : policies) {
      std::map<ParamId, int> seen;
      for (const UnitDecl& unit : resize_units(make_units(root, policy), sizes)) {
        ASSERT_FALSE(unit.params.empty());
        for (const ParamDecl& param : unit.params) ++seen[param.id];
      }
      ASSERT_EQ(seen.size(), static_cast<size_t>(next));
      for (const auto& [id, count] : seen) ASSERT_EQ(count, 1) << id;
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
