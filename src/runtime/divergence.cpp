#include "runtime/divergence.h"

#include <fsdp/error.h>

#include <algorithm>
#include <string>

namespace fsdp::detail {

namespace {

// The path of the innermost module that holds both; empty: the root.
std::string module_around(const std::string& a, const std::string& b) {
  const auto apart = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  const size_t dot = std::string(a.begin(), apart).rfind('.');
  return dot == std::string::npos ? "" : a.substr(0, dot);
}

// The path of the module around the first two units that `text` names.
std::string module_around_units(const std::string& text, const std::vector<std::shared_ptr<Unit>>& units) {
  std::vector<std::string> named;
  for (const auto& unit : units)
    if (text.find("'" + unit->name() + "'") != std::string::npos) named.push_back(unit->name());
  return named.size() == 2 ? module_around(named[0], named[1]) : "";
}

}  // namespace

std::exception_ptr with_advice(const std::exception_ptr& error,
                               const std::vector<std::shared_ptr<Unit>>& units) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError& met) {
    CommError::Details details = met.details();
    const bool same_call = details.reason.find(" where rank ") == std::string::npos ||
                           details.reason.find("; both are ") != std::string::npos ||
                           details.activity.empty();
    const bool differs = details.fault == CommFault::mismatch && same_call;
    const std::string around = differs ? module_around_units(met.what(), units) : "";
    if (around.empty()) return error;
    details.reason += ". Ranks used different parts of '" + around +
                      "'; if the data chooses between them, make '" + around +
                      "' one unit by ShardOptions::wrap.";
    return std::make_exception_ptr(CommError(std::move(details)));
  } catch (...) {
    return error;
  }
}

}  // namespace fsdp::detail
