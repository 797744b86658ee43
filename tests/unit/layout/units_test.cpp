#include "layout/units.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>
#include <stdexcept>

#include "support/ranks.h"
#include "unit/layout/random_tree.h"

namespace fsdp::testing {
namespace {

using namespace detail;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

// Of units or of parameters.
template <typename Decl>
std::vector<std::string> names(const std::vector<Decl>& decls) {
  std::vector<std::string> all;
  for (const Decl& decl : decls) all.push_back(decl.name);
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

// A module with children.
ModuleDecl holder(const std::string& path, const std::string& type, std::vector<ModuleDecl> children) {
  return {.path = path, .type = type, .params = {}, .children = std::move(children)};
}

// Two layers of `width` under `path`.
ModuleDecl pair_of_layers(Tree& tree, const std::string& path, const std::string& type, int64_t width) {
  return holder(path, type,
                {tree.leaf(path + ".in", "LinearImpl", {{4 * width, width}}),
                 tree.leaf(path + ".out", "LinearImpl", {{width, 4 * width}})});
}

// `count` of them in a list.
ModuleDecl list_of_pairs(Tree& tree, const std::string& path, const std::string& type, int count,
                         int64_t width = 8) {
  ModuleDecl list = holder(path, "ModuleListImpl", {});
  for (int i = 0; i < count; ++i)
    list.children.push_back(pair_of_layers(tree, path + "." + std::to_string(i), type, width));
  return list;
}

std::vector<std::string> automatic(const ModuleDecl& root) {
  return names(make_units(root, wrap_automatic(root)));
}

// Which experts run depends on the data, so that ranks would gather different units.
TEST(Units, AutomaticTakesTheLayerThatHoldsExperts) {
  Tree tree;
  const auto layer = [&](const std::string& path, const std::string& experts, const std::string& type) {
    return holder(path, "LayerImpl",
                  {tree.leaf(path + ".scores", "LinearImpl", {{4, 8}}),
                   list_of_pairs(tree, path + "." + experts, type, 4)});
  };
  const auto model = [&](ModuleDecl inner) {
    return holder("", "NetImpl",
                  {tree.leaf("embed", "EmbeddingImpl", {{400, 8}}), std::move(inner),
                   tree.leaf("head", "LinearImpl", {{400, 8}})});
  };
  for (const auto& one : {layer("moe", "experts", "FeedForwardImpl"), layer("moe", "list", "ExpertImpl"),
                          layer("moe", "list", "FeedForwardImpl")})
    EXPECT_THAT(automatic(model(one)), ElementsAre("embed", "moe", "head"));
  const ModuleDecl alone = holder(
      "", "NetImpl", {tree.leaf("gate", "LinearImpl", {{4, 8}}), list_of_pairs(tree, "ff", "FfImpl", 4)});
  EXPECT_THAT(automatic(alone), ElementsAre("root"));
}

TEST(Units, AutomaticTakesExpertsBesideTheirRouter) {
  Tree tree;
  ModuleDecl moe = holder("moe", "LayerImpl", {tree.leaf("moe.router", "LinearImpl", {{3, 8}})});
  for (const char* name : {"moe.a", "moe.b", "moe.c"})
    moe.children.push_back(pair_of_layers(tree, name, "FeedForwardImpl", 8));
  const ModuleDecl root =
      holder("", "NetImpl", {tree.leaf("head", "LinearImpl", {{400, 8}}), std::move(moe)});
  EXPECT_THAT(automatic(root), ElementsAre("head", "moe"));
}

TEST(Units, AutomaticTakesRepeatedBlocksAndNotTheExpertsInThem) {
  Tree tree;
  ModuleDecl list = holder("h", "ModuleListImpl", {});
  for (const char* path : {"h.0", "h.1"}) {
    const std::string name = path;
    list.children.push_back(holder(name, "BlockImpl",
                                   {pair_of_layers(tree, name + ".attention", "AttentionImpl", 4),
                                    holder(name + ".moe", "MoEImpl",
                                           {tree.leaf(name + ".moe.router", "LinearImpl", {{4, 8}}),
                                            list_of_pairs(tree, name + ".moe.experts", "ExpertImpl", 4)})}));
  }
  EXPECT_THAT(automatic(holder("", "NetImpl", {std::move(list)})), ElementsAre("h.0", "h.1"));
}

// A head with as many classes as there are blocks is no router: it comes after them.
TEST(Units, AutomaticTakesAChainWithAHeadForAChain) {
  Tree tree;
  ModuleDecl blocks = list_of_pairs(tree, "h", "BlockImpl", 3);
  const ModuleDecl root = holder("", "NetImpl",
                                 {tree.leaf("wpe", "EmbeddingImpl", {{3, 8}}), std::move(blocks),
                                  tree.leaf("head", "LinearImpl", {{3, 8}})});
  EXPECT_THAT(automatic(root), ElementsAre("root", "h.0", "h.1", "h.2"));
}

// Blocks of a U-Net have one type and widths of their own.
TEST(Units, AutomaticTakesBlocksOfOneTypeAndDifferentWidths) {
  Tree tree;
  std::vector<ModuleDecl> blocks;
  const std::vector<std::pair<std::string, int64_t>> widths = {
      {"down1", 4}, {"down2", 8}, {"middle", 16}, {"up2", 8}, {"up1", 4}};
  for (const auto& [name, width] : widths) blocks.push_back(pair_of_layers(tree, name, "BlockImpl", width));
  blocks.push_back(tree.leaf("last", "LinearImpl", {{3, 4}}));
  EXPECT_THAT(automatic(holder("", "UNetImpl", std::move(blocks))),
              ElementsAre("down1", "down2", "middle", "up2", "up1", "root"));
}

// Stages of different widths are lists of blocks, and their blocks are the units.
TEST(Units, AutomaticLooksInsideStages) {
  Tree tree;
  ModuleDecl root = holder("", "NetImpl", {});
  for (const auto& [name, width] : std::vector<std::pair<std::string, int64_t>>{{"s1", 4}, {"s2", 8}})
    root.children.push_back(
        holder(name, "StageImpl", {list_of_pairs(tree, name + ".blocks", "BlockImpl", 3, width)}));
  EXPECT_THAT(automatic(root), ElementsAre("s1.blocks.0", "s1.blocks.1", "s1.blocks.2", "s2.blocks.0",
                                           "s2.blocks.1", "s2.blocks.2"));
}

TEST(Units, AutomaticTakesTheLargeLayersOfASequential) {
  Tree tree;
  const ModuleDecl root =
      holder("", "SequentialImpl",
             {tree.leaf("0", "LinearImpl", {{64, 8}, {64}}), tree.leaf("1", "ReLUImpl", {}),
              tree.leaf("2", "LinearImpl", {{64, 64}, {64}}), tree.leaf("3", "ReLUImpl", {}),
              tree.leaf("4", "LinearImpl", {{64, 64}, {64}}), tree.leaf("5", "LinearImpl", {{2, 64}, {2}})});
  EXPECT_THAT(automatic(root), ElementsAre("root", "2", "4"));
  const ModuleDecl list = list_of_pairs(tree, "", "LinearImpl", 1);
  EXPECT_THAT(automatic(list), ElementsAre("root"));
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

TEST(Units, SmallParametersAreTakenInUnitOrderAndEmptyUnitsGo) {
  auto units = make_units(Tree().gpt(2), wrap_by_type({"LayerNormImpl", "LinearImpl"}));
  const auto small = take_small(units, 64);
  EXPECT_THAT(names(units), ElementsAre("root", "h.0.fc", "h.0.proj", "h.1.fc", "h.1.proj", "head"));
  EXPECT_THAT(names(small), ElementsAre("h.0.norm.p0", "h.0.norm.p1", "h.0.proj.p1", "h.1.norm.p0",
                                        "h.1.norm.p1", "h.1.proj.p1", "norm.p0", "norm.p1"));
  EXPECT_EQ(units[1].params.size(), 2u) << "64 elements are not fewer than 64";
}

TEST(Units, BelowZeroElementsNothingIsSmall) {
  Tree tree;
  const ModuleDecl root = tree.leaf("", "NetImpl", {{0, 3}, {}});
  auto units = make_units(root, wrap_none());
  EXPECT_TRUE(take_small(units, 0).empty());
  EXPECT_EQ(units[0].params.size(), 2u);
  EXPECT_THAT(names(take_small(units, 1)), ElementsAre(".p0")) << "without elements";
  EXPECT_THAT(names(take_small(units, 2)), ElementsAre(".p1")) << "a scalar";
  EXPECT_TRUE(units.empty());
}

TEST(Units, PathsNameModulesAndParameters) {
  const ModuleDecl root = Tree().gpt(2);
  EXPECT_THAT(params_under(root, {}), IsEmpty());
  EXPECT_THAT(params_under(root, {"wte"}), ElementsAre(0));
  EXPECT_THAT(params_under(root, {"h.1.fc.p1"}), ElementsAre(10));
  EXPECT_THAT(params_under(root, {"head", "h.0", "h.0.fc", "head"}), ElementsAre(1, 2, 3, 4, 5, 6, 15))
      << "each once, in order of definition";
  EXPECT_EQ(params_under(root, {""}).size(), 16u) << "the root";
}

TEST(Units, APathEndsAtAWholeName) {
  Tree tree;
  ModuleDecl root{.path = "", .type = "NetImpl", .params = {}, .children = {}};
  root.children.push_back(tree.leaf("h.1", "LinearImpl", {{2}}));
  root.children.push_back(tree.leaf("h.10", "LinearImpl", {{2}}));
  root.children.push_back(tree.leaf("bare", "ReLUImpl", {}));
  EXPECT_THAT(params_under(root, {"h.1"}), ElementsAre(0));
  EXPECT_THAT(params_under(root, {"bare"}), IsEmpty()) << "a module without parameters is no mistake";
}

TEST(Units, ATiedParameterIsReachedByAnyOfItsNames) {
  ModuleDecl root = Tree().gpt(1);
  root.children.back().params[0].id = 0;
  EXPECT_THAT(params_under(root, {"head"}), ElementsAre(0));
  EXPECT_THAT(params_under(root, {"head.p0"}), ElementsAre(0));
  EXPECT_THAT(params_under(root, {"wte.p0"}), ElementsAre(0));
  EXPECT_THAT(params_under(root, {"head", "wte"}), ElementsAre(0));
}

std::string refusal(const ModuleDecl& root, const std::vector<std::string>& paths) {
  try {
    params_under(root, paths);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Units, AMistypedPathIsRefusedWithTheNamesNearIt) {
  const ModuleDecl root = Tree().gpt(2);
  EXPECT_EQ(refusal(root, {"wte", "h.0.nrm"}),
            "no module or parameter 'h.0.nrm'; near names: h.0.norm, h.1.norm, h.0.fc");
  EXPECT_EQ(refusal(root, {"h.2"}), "no module or parameter 'h.2'; near names: h.0, h.1, h");
  const ModuleDecl bare{.path = "", .type = "NetImpl", .params = {}, .children = {}};
  EXPECT_EQ(refusal(bare, {"h"}), "no module or parameter 'h'");
}

// Slow and plain: a name is reached when it is a path or begins with one and a dot.
std::set<ParamId> reached(const ModuleDecl& module, const std::string& path) {
  std::set<ParamId> ids;
  for (const ParamDecl& param : module.params)
    if (path.empty() || param.name == path || param.name.starts_with(path + ".")) ids.insert(param.id);
  for (const ModuleDecl& child : module.children) ids.merge(reached(child, path));
  return ids;
}

TEST(UnitsProperty, PathsReachTheNamesThatBeginWithThem) {
  std::mt19937 random(seed());
  for (int round = repeats(200, 5000); round > 0; --round) {
    const ModuleDecl root = RandomTree(random).grow(4);
    const auto paths = random_paths(random, root);
    std::set<ParamId> expected;
    for (const std::string& path : paths) expected.merge(reached(root, path));
    const auto ids = params_under(root, paths);
    ASSERT_EQ(std::set<ParamId>(ids.begin(), ids.end()), expected);
    ASSERT_EQ(ids.size(), expected.size()) << "each once";
  }
}

TEST(UnitsProperty, EveryParameterIsInOneUnitOrReplicatedOrIgnored) {
  std::mt19937 random(seed());
  for (int round = repeats(200, 5000); round > 0; --round) {
    RandomTree tree(random);
    const ModuleDecl root = tree.grow(4);
    const auto ignored = params_under(root, random_paths(random, root));
    const auto below = static_cast<int64_t>(random() % 30);
    const UnitSizes sizes = random_sizes(random);
    for (const UnitPolicy& policy : all_policies(random, root)) {
      std::map<ParamId, int> seen;
      for (const ParamId id : ignored) ++seen[id];
      auto units = make_units(root, policy, ignored);
      for (const ParamDecl& param : take_small(units, below)) {
        ASSERT_LT(param.numel(), below);
        ++seen[param.id];
      }
      for (const UnitDecl& unit : resize_units(units, sizes)) {
        ASSERT_FALSE(unit.params.empty());
        for (const ParamDecl& param : unit.params) {
          ASSERT_GE(param.numel(), below);
          ++seen[param.id];
        }
      }
      ASSERT_EQ(seen.size(), tree.params().size());
      for (const auto& [id, count] : seen) ASSERT_EQ(count, 1) << id;
    }
  }
}

}  // namespace
}  // namespace fsdp::testing
