// Finds the units named in UnitOptions::forward_prefetch and backward_prefetch.
#include <algorithm>

#include "layout/near_names.h"
#include "shard/sharding.h"

namespace fsdp::detail {

namespace {

using Names = std::optional<std::vector<std::string>>;

void check_names(const char* option, const std::string& unit, const Names& names,
                 const std::vector<std::string>& known) {
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string near;
    for (const std::string& one : near_names(name, known)) near += (near.empty() ? "'" : ", '") + one + "'";
    TORCH_CHECK(false, "fsdp: ", option, " of unit '", unit, "' has '", name,
                "', which is no unit; the nearest are ", near,
                ". The names of units are those that ShardOptions::unit is called with.");
  }
}

// Units of this model come before units of models inside it.
std::optional<UnitList> find_units(const Names& names, const std::vector<std::shared_ptr<Unit>>& own,
                                   const std::vector<std::shared_ptr<Unit>>& all) {
  if (!names) return std::nullopt;
  UnitList list;
  for (const std::string& name : *names) {
    const auto named = [&](const std::shared_ptr<Unit>& unit) { return unit->name() == name; };
    const auto here = std::find_if(own.begin(), own.end(), named);
    list.push_back(here != own.end() ? *here : *std::find_if(all.begin(), all.end(), named));
  }
  return list;
}

}  // namespace

void Sharding::check_prefetch_lists(const std::vector<PlannedUnit>& planned) const {
  std::vector<std::string> known;
  for (const PlannedUnit& unit : planned) known.push_back(unit.decl.name);
  for (const auto& inner : inner_)
    for (const auto& unit : inner->units) known.push_back(unit->name());
  for (const PlannedUnit& unit : planned) {
    check_names("forward_prefetch", unit.decl.name, unit.options.forward_prefetch, known);
    check_names("backward_prefetch", unit.decl.name, unit.options.backward_prefetch, known);
  }
}

// `planned` are the last units of the engine, in order.
void Sharding::set_prefetch_lists(const std::vector<PlannedUnit>& planned) {
  const auto& all = engine_->units;
  const std::vector<std::shared_ptr<Unit>> own(all.end() - static_cast<std::ptrdiff_t>(planned.size()),
                                               all.end());
  for (size_t i = 0; i < planned.size(); ++i) {
    own[i]->forward_prefetch = find_units(planned[i].options.forward_prefetch, own, all);
    own[i]->backward_prefetch = find_units(planned[i].options.backward_prefetch, own, all);
  }
}

}  // namespace fsdp::detail
