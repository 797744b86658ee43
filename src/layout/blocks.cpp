#include "layout/blocks.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

namespace fsdp::detail {

namespace {

int64_t elements_below(const ModuleDecl& module) {
  int64_t n = 0;
  for (const ParamDecl& param : module.params) n += param.numel();
  for (const ModuleDecl& child : module.children) n += elements_below(child);
  return n;
}

// Two modules with equal signatures are copies of one block.
std::string signature(const ModuleDecl& module) {
  std::string text = module.type + "(";
  for (const ParamDecl& param : module.params) {
    for (const int64_t extent : param.shape) text += std::to_string(extent) + "x";
    text += std::to_string(param.type.code) + (param.trainable ? "t," : "f,");
  }
  for (const ModuleDecl& child : module.children) text += signature(child);
  return text + ")";
}

// Modules that only hold others, under the names of torch::nn and of TorchScript.
bool is_list(const ModuleDecl& module) {
  const std::set<std::string> lists = {"SequentialImpl", "ModuleListImpl", "ModuleDictImpl",
                                       "Sequential",     "ModuleList",     "ModuleDict"};
  return lists.contains(module.type);
}

bool is_sequential(const ModuleDecl& module) {
  return module.type == "SequentialImpl" || module.type == "Sequential";
}

// True if `text` contains one of `words`, in any case.
bool mentions(const std::string& text, std::initializer_list<const char*> words) {
  std::string lower = text;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return lower.find(word) != std::string::npos; });
}

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

// Children of `parent` that repeat: of one type, with any widths; lists only if they hold the same.
struct Repeated {
  const ModuleDecl* parent = nullptr;
  std::vector<const ModuleDecl*> modules;
  int64_t elements = 0;

  bool all_equal() const {
    return std::all_of(modules.begin(), modules.end(), [&](const ModuleDecl* module) {
      return signature(*module) == signature(*modules.front());
    });
  }
};

// The repeated children, with children of their own, that hold most of `parent`; empty if there are none.
Repeated repeated_in(const ModuleDecl& parent) {
  std::map<std::string, std::vector<const ModuleDecl*>> alike;
  for (const ModuleDecl& child : parent.children)
    if (!child.children.empty() && elements_below(child) > 0)
      alike[is_list(child) ? signature(child) : child.type].push_back(&child);
  for (auto& [kind, modules] : alike) {
    int64_t together = 0;
    for (const ModuleDecl* module : modules) together += elements_below(*module);
    if (modules.size() >= 2 && 2 * together > elements_below(parent))
      return {.parent = &parent, .modules = std::move(modules), .elements = together};
  }
  return {};
}

// Finds the paths that wrap_automatic chooses.
class BlockFinder {
 public:
  explicit BlockFinder(const ModuleDecl& root) {
    find_blocks(root, nullptr);
    if (blocks_.empty() && !routed_) find_large_layers(root, elements_below(root));
    if (!blocks_.empty()) find_large_neighbours(root);
  }

  std::set<std::string> paths() const { return blocks_; }

 private:
  void find_blocks(const ModuleDecl& module, const ModuleDecl* parent) {
    const Repeated found = repeated_in(module);
    if (found.modules.empty() || (!found.all_equal() && are_stacks(found))) {
      for (const ModuleDecl& child : module.children) find_blocks(child, &module);
      return;
    }
    const ModuleDecl& holder = is_list(module) && parent != nullptr ? *parent : module;
    if (are_experts(found, holder)) {
      routed_ = true;
      if (!holder.path.empty()) take(holder);
      return;
    }
    for (const ModuleDecl* block : found.modules) take(*block);
    take_siblings(found);
  }

  void take(const ModuleDecl& block) {
    blocks_.insert(block.path);
    block_elements_ = std::max(block_elements_, elements_below(block));
  }

  // Takes other modules in the same chain that hold at least half as much as an average block.
  void take_siblings(const Repeated& found) {
    const auto count = static_cast<int64_t>(found.modules.size());
    for (const ModuleDecl& child : found.parent->children) {
      if (blocks_.contains(child.path) || child.children.empty() || is_list(child)) continue;
      if (is_stack(child, elements_below(child)))
        find_blocks(child, found.parent);
      else if (2 * count * elements_below(child) >= found.elements)
        blocks_.insert(child.path);
    }
  }

  // True for experts, of which different ranks would gather different ones: recognised by their names, or by
  // a layer before them that has one output for each.
  static bool are_experts(const Repeated& found, const ModuleDecl& holder) {
    if (mentions(last_name(found.parent->path), {"expert"}) ||
        mentions(found.modules.front()->type, {"expert"}) || mentions(holder.type, {"expert", "moe"}))
      return true;
    const auto count = static_cast<int64_t>(found.modules.size());
    bool before = true;
    for (const ModuleDecl& child : holder.children) {
      before = before && &child != found.parent && &child != found.modules.front();
      const bool scores = child.children.empty() && !mentions(child.type, {"embedding"}) &&
                          std::any_of(child.params.begin(), child.params.end(), [&](const ParamDecl& param) {
                            return param.shape.size() == 2 && param.shape[0] == count;
                          });
      if (scores && (before || mentions(last_name(child.path), {"gate", "router"}))) return true;
    }
    return std::any_of(holder.params.begin(), holder.params.end(), [](const ParamDecl& param) {
      return mentions(last_name(param.name), {"gate", "router"});
    });
  }

  // True for blocks of different widths that are themselves lists of blocks: the inner ones are the units.
  static bool are_stacks(const Repeated& found) {
    return std::any_of(found.modules.begin(), found.modules.end(),
                       [](const ModuleDecl* module) { return is_stack(*module, elements_below(*module)); });
  }
  static bool is_stack(const ModuleDecl& module, int64_t elements, const ModuleDecl* parent = nullptr) {
    const Repeated inner = repeated_in(module);
    const ModuleDecl& holder = is_list(module) && parent != nullptr ? *parent : module;
    if (inner.modules.size() >= 3 && 2 * inner.elements > elements) return !are_experts(inner, holder);
    return std::any_of(module.children.begin(), module.children.end(),
                       [&](const ModuleDecl& child) { return is_stack(child, elements, &module); });
  }

  // In a model without blocks: takes the layers of a Sequential, which run one after the other, if it holds
  // most of the model and two of them are large.
  void find_large_layers(const ModuleDecl& module, int64_t elements) {
    if (!is_sequential(module) || 2 * elements_below(module) <= elements) {
      for (const ModuleDecl& child : module.children) find_large_layers(child, elements);
      return;
    }
    int64_t largest = 0;
    for (const ModuleDecl& layer : module.children) largest = std::max(largest, elements_below(layer));
    std::vector<const ModuleDecl*> large;
    for (const ModuleDecl& layer : module.children)
      if (largest > 0 && 2 * elements_below(layer) >= largest) large.push_back(&layer);
    if (large.size() >= 2)
      for (const ModuleDecl* layer : large) take(*layer);
  }

  // Takes modules outside the blocks that hold at least half as much as one block.
  void find_large_neighbours(const ModuleDecl& module) {
    for (const ModuleDecl& child : module.children) {
      if (blocks_.contains(child.path)) continue;
      if (child.children.empty() && 2 * elements_below(child) >= block_elements_) large_.insert(child.path);
      find_large_neighbours(child);
    }
    if (module.path.empty()) blocks_.merge(large_);
  }

  std::set<std::string> blocks_;
  std::set<std::string> large_;
  int64_t block_elements_ = 0;
  bool routed_ = false;  // there are experts
};

}  // namespace

std::set<std::string> block_paths(const ModuleDecl& root) { return BlockFinder(root).paths(); }

}  // namespace fsdp::detail
