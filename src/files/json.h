// Parses JSON from untrusted files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::detail {

using Json = nlohmann::json;

// `text` as messages show it: short, and printable.
std::string printable(std::string_view text);

// `value` as text. Throws CheckpointError, which begins with `where`, if one of its strings is not UTF-8.
std::string json_text(const Json& value, const std::string& where);

// Limit of memory for a parsed text. A manifest of 4,096 ranks takes about 600 MB.
inline constexpr int64_t kMostJsonMemory = int64_t{1} << 30;

// Throws CheckpointError, which begins with `where`, if the text is no JSON, names a key twice in one object,
// nests deeper than `depth` or would take more than kMostJsonMemory.
Json parse_json(std::string_view text, const std::string& where, int depth = 16);

// Members of an object by type. They throw CheckpointError if a member is missing or has another type.
class JsonObject {
 public:
  JsonObject(const Json& value, std::string where);

  bool has(const std::string& key) const { return value_.contains(key); }
  const Json& at(const std::string& key) const;
  JsonObject object(const std::string& key) const;
  std::string text(const std::string& key) const;
  double number(const std::string& key) const;
  bool flag(const std::string& key) const;
  // The value must lie between `least` and `most`.
  int64_t integer(const std::string& key, int64_t least = INT64_MIN, int64_t most = INT64_MAX) const;
  std::vector<int64_t> integers(const std::string& key, int64_t least = INT64_MIN) const;

  const Json& json() const { return value_; }
  const std::string& where() const { return where_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  const Json& value_;
  std::string where_;
};

// As integers(), for a value that is no member.
std::vector<int64_t> integers_of(const Json& value, const std::string& where, int64_t least = INT64_MIN);

// JSON has no infinities and no NaN: these are the texts "inf", "-inf" and "nan".
Json number_json(double number);
double number_of(const Json& value, const std::string& where);

}  // namespace fsdp::detail
