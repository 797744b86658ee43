// Groups parameters into units, which are gathered and reduced together, by module tree and wrap policy.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layout/module_tree.h"

namespace fsdp::detail {

// A unit: parameters that are gathered together, in order of definition. A tied parameter belongs to the
// first unit that has it.
struct UnitDecl {
  std::string name;  // path of the module; "root" for the parameters that no other unit took
  std::vector<ParamDecl> params;

  int64_t numel() const;
  int64_t bytes() const;
};

// Returns whether a module becomes a unit, given the number of elements below it that are in no unit yet.
// Called from the leaves up, but not for the root, which takes the rest.
using UnitPolicy = std::function<bool(const ModuleDecl& module, int64_t free_elements)>;

UnitPolicy wrap_none();                           // the whole model is one unit
UnitPolicy wrap_by_size(int64_t min_num_params);  // a module with at least that many elements left
UnitPolicy wrap_by_type(std::vector<std::string> type_names);  // modules of these types
// Repeated blocks: children of one parent that have the same type, if there are at least two and together
// they hold most of the parent's elements. Large modules beside them (an embedding, a head) become units of
// their own. Experts that a router chooses from stay together: the layer that holds them is the unit. Without
// blocks, the large layers of a Sequential that holds most of the model.
UnitPolicy wrap_automatic(const ModuleDecl& root);

// Puts every parameter in exactly one unit, except those `ignored` (by id). Units without parameters are left
// out.
std::vector<UnitDecl> make_units(const ModuleDecl& root, const UnitPolicy& policy,
                                 const std::vector<ParamId>& ignored = {});

// Removes the parameters with fewer than `below_numel` elements from the units, and units that become empty
// with them. Returns them in unit order, to be replicated instead of sharded. 0 takes none.
[[nodiscard]] std::vector<ParamDecl> take_small(std::vector<UnitDecl>& units, int64_t below_numel);

// Joins neighbours smaller than `min_bytes`, and splits a unit larger than `max_bytes` between parameters. 0:
// neither.
struct UnitSizes {
  int64_t min_bytes = 0;
  int64_t max_bytes = 0;
};
std::vector<UnitDecl> resize_units(std::vector<UnitDecl> units, const UnitSizes& sizes);

}  // namespace fsdp::detail
