#include "base/env.h"

#include <fsdp/error.h>
#include <strings.h>

#include <charconv>
#include <cstdlib>

namespace fsdp::detail {

std::optional<std::string> env_string(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int> env_int(const char* name, int lowest) {
  const auto text = env_string(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size() || value < lowest)
    throw RendezvousError(std::string(name) + "='" + *text + "' is not a whole number of at least " +
                          std::to_string(lowest) + ". Set it to one, or unset it.");
  return value;
}

bool env_flag(const char* name) {
  const auto text = env_string(name);
  if (!text) return false;
  for (const char* yes : {"1", "true", "yes", "on"})
    if (strcasecmp(text->c_str(), yes) == 0) return true;
  return false;
}

}  // namespace fsdp::detail
