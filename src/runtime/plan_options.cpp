#include "runtime/plan_options.h"

#include <algorithm>

namespace fsdp::detail {

namespace {

PrefetchLists lists_of(const std::vector<std::shared_ptr<Unit>>& units, std::optional<UnitList> Unit::*list) {
  PrefetchLists lists;
  for (const auto& unit : units) {
    lists.emplace_back();
    if (!((*unit).*list)) continue;
    std::vector<UnitId>& ids = lists.back().emplace();
    for (const std::weak_ptr<Unit>& listed : *((*unit).*list))
      if (const auto there = listed.lock()) ids.push_back(there->id);
  }
  return lists;
}

}  // namespace

PlanOptions plan_options(const ShardOptions& options, const std::vector<std::shared_ptr<Unit>>& units) {
  // A higher limit looks further ahead.
  const int ahead = std::max(1, options.limit_all_gathers - 1);
  return {.forward_ahead = options.forward_prefetch.value_or(ahead),
          .backward_ahead = ahead,
          .max_slots = options.limit_all_gathers,
          .backward = static_cast<Prefetch>(options.backward_prefetch),
          .forward_lists = lists_of(units, &Unit::forward_prefetch),
          .backward_lists = lists_of(units, &Unit::backward_prefetch)};
}

}  // namespace fsdp::detail
