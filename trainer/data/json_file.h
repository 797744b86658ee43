// JSON of files that may hold anything: what does not fit is a DataError with file and key.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fsdp::data {

using Json = nlohmann::json;

// The reason within the message of a parse_error.
std::string reason_of(const Json::parse_error& error);

// Throws DataError with file:offset for what is not JSON, and IoError.
Json read_json(const std::string& path);

// A value of a file, with its place in it for messages.
class JsonValue {
 public:
  JsonValue(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  // "tokenizer.json: model.vocab".
  const std::string& where() const { return where_; }
  const Json& json() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  // Throw DataError if the value is of another type, or there is no such key.
  const Json& object() const;
  const Json& array() const;
  std::string text() const;
  bool flag() const;
  int32_t token() const;  // from 0 to kMostTokens - 1
  JsonValue at(const std::string& key) const;

  // null if there is no such key.
  JsonValue get(const std::string& key) const;
  // `otherwise` if the key is missing or null.
  bool flag(const std::string& key, bool otherwise) const;

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  JsonValue child(const Json& value, const std::string& key) const;

  const Json* value_;
  std::string where_;
};

// More than any vocabulary has; a larger token is a mistake in a file.
inline constexpr int32_t kMostTokens = 1 << 22;

}  // namespace fsdp::data
