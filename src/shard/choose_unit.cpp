#include "shard/choose_unit.h"

#include <utility>

#include "runtime/unit.h"

namespace fsdp::detail {

namespace {

std::optional<ElementType> element_type_if(const std::optional<at::ScalarType>& type) {
  return type ? std::optional(element_type(*type)) : std::nullopt;
}

}  // namespace

UnitChoice choose_unit(const PlannedUnit& planned, const ShardOptions& options,
                       const UnitSurroundings& surroundings) {
  const Precision precision = planned.options.precision.value_or(options.precision);
  const bool whole = planned.replicated || options.strategy == Strategy::no_shard;
  const bool reshards =
      options.strategy == Strategy::full_shard || options.strategy == Strategy::hybrid_shard;
  const bool host_side = surroundings.host_side;
  return {.ranks = whole ? 1 : surroundings.row_ranks,
          .pieces = surroundings.pieces,
          .master = element_type_if(precision.master),
          .compute = element_type_if(precision.param),
          .reduce = element_type_if(precision.reduce),
          .keep_low_precision_grads = precision.keep_low_precision_grads,
          .stays_gathered = !planned.options.reshard_after_forward.value_or(reshards),
          .may_share = surroundings.may_share,
          .average = options.gradients == ReduceOp::average && !options.gradient_divide_factor,
          .divide_by = options.gradient_divide_factor.value_or(0),
          .on_host = host_side && options.offload.params,
          .gradient_on_host = host_side && (options.offload.params || options.offload.gradients)};
}

std::vector<PlannedUnit> with_options(std::vector<UnitDecl> decls, const ShardOptions& options, bool whole) {
  std::vector<ParamDecl> small = take_small(decls, whole ? 0 : options.replicate_below);
  std::vector<PlannedUnit> planned;
  for (UnitDecl& decl : decls) planned.push_back({.decl = std::move(decl)});
  if (!small.empty())
    planned.push_back({.decl = {.name = "replicated", .params = std::move(small)}, .replicated = true});
  if (options.unit)
    for (PlannedUnit& unit : planned) unit.options = options.unit(unit.decl.name);
  return planned;
}

}  // namespace fsdp::detail
