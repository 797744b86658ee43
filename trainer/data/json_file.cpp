#include "trainer/data/json_file.h"

#include <algorithm>

#include "trainer/data/error.h"
#include "trainer/data/mapped_file.h"

namespace fsdp::data {

// Messages are of the form "[json.exception...] parse error at line 1, column 3: reason".
std::string reason_of(const Json::parse_error& error) {
  const std::string all = error.what();
  const size_t column = all.find("column ");
  const size_t colon = column == std::string::npos ? column : all.find(": ", column);
  return colon == std::string::npos ? all : all.substr(colon + 2);
}

Json read_json(const std::string& path) {
  const MappedFile file(path);
  try {
    return Json::parse(file.text());
  } catch (const Json::parse_error& error) {
    throw DataError(path + ":" + std::to_string(std::max<size_t>(error.byte, 1) - 1) +
                    ": not JSON: " + reason_of(error));
  }
}

void JsonValue::refuse(const std::string& why) const { throw DataError(where_ + ": " + why); }

const Json& JsonValue::object() const {
  if (!value_->is_object()) refuse(std::string("an object is expected, found ") + value_->type_name());
  return *value_;
}

const Json& JsonValue::array() const {
  if (!value_->is_array()) refuse(std::string("an array is expected, found ") + value_->type_name());
  return *value_;
}

std::string JsonValue::text() const {
  if (!value_->is_string()) refuse(std::string("a string is expected, found ") + value_->type_name());
  return value_->get<std::string>();
}

bool JsonValue::flag() const {
  if (!value_->is_boolean()) refuse(std::string("true or false is expected, found ") + value_->type_name());
  return value_->get<bool>();
}

int32_t JsonValue::token() const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() >= static_cast<uint64_t>(kMostTokens))
    refuse("a token is expected, an integer from 0 to " + std::to_string(kMostTokens - 1) + "; found " +
           (value_->is_structured() ? value_->type_name() : value_->dump(-1, ' ', true).substr(0, 40)));
  return value_->get<int32_t>();
}

JsonValue JsonValue::child(const Json& value, const std::string& key) const {
  return {value, where_ + (where_.find(": ") == std::string::npos ? ": " : ".") + key};
}

JsonValue JsonValue::at(const std::string& key) const {
  const auto found = object().find(key);
  if (found == value_->end()) refuse("there is no key '" + key + "'");
  return child(*found, key);
}

JsonValue JsonValue::get(const std::string& key) const {
  static const Json kNull;
  const auto found = object().find(key);
  return child(found == value_->end() ? kNull : *found, key);
}

bool JsonValue::flag(const std::string& key, bool otherwise) const {
  const JsonValue value = get(key);
  return value.is_null() ? otherwise : value.flag();
}

}  // namespace fsdp::data
