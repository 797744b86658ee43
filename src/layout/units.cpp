#include "layout/units.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "layout/blocks.h"

namespace fsdp::detail {

namespace {

int64_t bytes_of(const ParamDecl& param) { return param.numel() * param.type.bytes; }

// Walks from the leaves up and takes parameters into units, as the policy decides.
class UnitMaker {
 public:
  UnitMaker(const UnitPolicy& policy, const std::vector<ParamId>& ignored)
      : policy_(policy), taken_(ignored.begin(), ignored.end()) {}

  std::vector<UnitDecl> run(const ModuleDecl& root) {
    visit(root, true);
    take(root, "root");
    // In order of definition, since modules were asked in another order.
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Found& a, const Found& b) { return a.first < b.first; });
    std::vector<UnitDecl> units;
    for (Found& found : found_) units.push_back(std::move(found.unit));
    return units;
  }

 private:
  struct Found {
    int64_t first;  // position of its first parameter in the model
    UnitDecl unit;
  };

  void visit(const ModuleDecl& module, bool is_root) {
    for (const ParamDecl& param : module.params)
      order_.try_emplace(param.id, static_cast<int64_t>(order_.size()));
    for (const ModuleDecl& child : module.children) visit(child, false);
    if (is_root) return;
    if (policy_(module, free_elements(module))) take(module, module.path);
  }

  int64_t free_elements(const ModuleDecl& module) const {
    int64_t n = 0;
    for (const ParamDecl& param : module.params)
      if (!taken_.contains(param.id)) n += param.numel();
    for (const ModuleDecl& child : module.children) n += free_elements(child);
    return n;
  }

  void take(const ModuleDecl& module, const std::string& name) {
    UnitDecl unit{.name = name, .params = {}};
    collect(module, unit);
    if (unit.params.empty()) return;
    const int64_t first = order_.at(unit.params.front().id);
    found_.push_back({first, std::move(unit)});
  }

  void collect(const ModuleDecl& module, UnitDecl& unit) {
    for (const ParamDecl& param : module.params)
      if (taken_.insert(param.id).second) unit.params.push_back(param);
    for (const ModuleDecl& child : module.children) collect(child, unit);
  }

  const UnitPolicy& policy_;
  std::set<ParamId> taken_;
  std::map<ParamId, int64_t> order_;
  std::vector<Found> found_;
};

void split_unit(UnitDecl unit, int64_t max_bytes, std::vector<UnitDecl>& out) {
  UnitDecl part{.name = unit.name, .params = {}};
  int pieces = 0;
  const auto finish = [&] {
    if (part.params.empty()) return;
    if (pieces > 0) part.name = unit.name + "#" + std::to_string(pieces);
    ++pieces;
    out.push_back(std::exchange(part, UnitDecl{.name = unit.name, .params = {}}));
  };
  // Parameters of one module are read together by an operator.
  const auto module_of = [](const ParamDecl& param) {
    return param.name.substr(0, param.name.rfind('.') + 1);
  };
  for (size_t i = 0; i < unit.params.size();) {
    size_t end = i;
    int64_t bytes = 0;
    while (end < unit.params.size() && module_of(unit.params[end]) == module_of(unit.params[i]))
      bytes += bytes_of(unit.params[end++]);
    if (!part.params.empty() && part.bytes() + bytes > max_bytes) finish();
    for (; i < end; ++i) part.params.push_back(std::move(unit.params[i]));
  }
  finish();
}

}  // namespace

int64_t UnitDecl::numel() const {
  int64_t n = 0;
  for (const ParamDecl& param : params) n += param.numel();
  return n;
}

int64_t UnitDecl::bytes() const {
  int64_t n = 0;
  for (const ParamDecl& param : params) n += bytes_of(param);
  return n;
}

UnitPolicy wrap_none() {
  return [](const ModuleDecl&, int64_t) { return false; };
}

UnitPolicy wrap_by_size(int64_t min_num_params) {
  return
      [min_num_params](const ModuleDecl&, int64_t free_elements) { return free_elements >= min_num_params; };
}

UnitPolicy wrap_by_type(std::vector<std::string> type_names) {
  return [names = std::set<std::string>(type_names.begin(), type_names.end())](
             const ModuleDecl& module, int64_t) { return names.contains(module.type); };
}

UnitPolicy wrap_automatic(const ModuleDecl& root) {
  return
      [paths = block_paths(root)](const ModuleDecl& module, int64_t) { return paths.contains(module.path); };
}

std::vector<UnitDecl> make_units(const ModuleDecl& root, const UnitPolicy& policy,
                                 const std::vector<ParamId>& ignored) {
  return UnitMaker(policy, ignored).run(root);
}

std::vector<ParamDecl> take_small(std::vector<UnitDecl>& units, int64_t below_numel) {
  std::vector<ParamDecl> small;
  for (UnitDecl& unit : units) {
    std::vector<ParamDecl> kept;
    for (ParamDecl& param : unit.params)
      (param.numel() < below_numel ? small : kept).push_back(std::move(param));
    unit.params = std::move(kept);
  }
  std::erase_if(units, [](const UnitDecl& unit) { return unit.params.empty(); });
  return small;
}

std::vector<UnitDecl> resize_units(std::vector<UnitDecl> units, const UnitSizes& sizes) {
  std::vector<UnitDecl> joined;
  for (UnitDecl& unit : units) {
    const bool join = !joined.empty() &&
                      (joined.back().bytes() < sizes.min_bytes || unit.bytes() < sizes.min_bytes) &&
                      (sizes.max_bytes == 0 || joined.back().bytes() + unit.bytes() <= sizes.max_bytes);
    if (!join) {
      joined.push_back(std::move(unit));
      continue;
    }
    joined.back().name += "+" + unit.name;
    std::move(unit.params.begin(), unit.params.end(), std::back_inserter(joined.back().params));
  }
  if (sizes.max_bytes == 0) return joined;
  std::vector<UnitDecl> cut;
  for (UnitDecl& unit : joined) split_unit(std::move(unit), sizes.max_bytes, cut);
  return cut;
}

}  // namespace fsdp::detail
