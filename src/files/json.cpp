#include "files/json.h"

#include <fsdp/error.h>

#include <cmath>
#include <limits>
#include <new>
#include <set>

namespace fsdp::detail {

namespace {

int64_t integer_of(const Json& value, const std::string& where, int64_t least, int64_t most) {
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() ||
                                                  value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most)
    throw CheckpointError(where + " is " +
                          printable(value.dump(-1, ' ', false, Json::error_handler_t::replace)) +
                          ", not an integer that is possible there" +
                          (most < INT64_MAX ? ": at most " + std::to_string(most) : ""));
  return value.get<int64_t>();
}

// Bytes that one more value of a parsed text takes, approximately: texts are small, but lists of small
// numbers take ten times their text and more.
int64_t memory_of(Json::parse_event_t event, const Json& value) {
  constexpr int64_t kContainer = 48, kNode = 80;  // allocated for a list or an object, and for a key in one
  using Event = Json::parse_event_t;
  if (event == Event::object_end || event == Event::array_end) return 0;
  const int64_t text = value.is_string() ? std::ssize(value.get_ref<const std::string&>()) : 0;
  if (event == Event::key) return 2 * (kNode + text);  // also kept to find duplicates
  const bool container = event == Event::object_start || event == Event::array_start;
  return static_cast<int64_t>(sizeof(Json)) + text + (container ? kContainer : 0);
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t kMost = 120;
  std::string shown(text.substr(0, kMost));
  for (char& c : shown)
    if (c < ' ' || c > '~') c = '?';
  return text.size() > kMost ? shown + "..." : shown;
}

std::string json_text(const Json& value, const std::string& where) {
  try {
    return value.dump();
  } catch (const Json::exception& error) {
    throw CheckpointError(where + " cannot be written as JSON: " + printable(error.what()));
  }
}

Json parse_json(std::string_view text, const std::string& where, int depth) {
  std::vector<std::set<std::string>> keys;
  int64_t memory = 0;
  const auto look = [&](int level, Json::parse_event_t event, Json& value) {
    if (level > depth) throw CheckpointError(where + ": nested deeper than " + std::to_string(depth));
    memory += memory_of(event, value);
    if (memory > kMostJsonMemory)
      throw CheckpointError(where + " holds too many values: they would take more than " +
                            std::to_string(kMostJsonMemory) +
                            " bytes of memory, which no checkpoint needs. It is damaged or made to harm");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get_ref<std::string&>()).second)
      throw CheckpointError(where + ": the key '" + printable(value.get_ref<std::string&>()) +
                            "' is there twice");
    return true;
  };
  try {
    return Json::parse(text, look);
  } catch (const Json::exception& error) {
    throw CheckpointError(where + " is not JSON: " + printable(error.what()));
  } catch (const std::bad_alloc&) {
    throw CheckpointError(where + " has " + std::to_string(text.size()) +
                          " bytes: there is not enough memory to read it");
  }
}

JsonObject::JsonObject(const Json& value, std::string where) : value_(value), where_(std::move(where)) {
  if (!value_.is_object()) throw CheckpointError(where_ + " is not an object");
}

void JsonObject::fail(const std::string& what) const { throw CheckpointError(where_ + ": " + what); }

const Json& JsonObject::at(const std::string& key) const {
  const auto found = value_.find(key);
  if (found == value_.end()) fail("no '" + key + "'");
  return *found;
}

JsonObject JsonObject::object(const std::string& key) const {
  return JsonObject(at(key), where_ + ", '" + key + "'");
}

std::string JsonObject::text(const std::string& key) const {
  if (!at(key).is_string()) fail("'" + key + "' is not a string");
  return at(key).get<std::string>();
}

double JsonObject::number(const std::string& key) const {
  if (!at(key).is_number()) fail("'" + key + "' is not a number");
  return at(key).get<double>();
}

bool JsonObject::flag(const std::string& key) const {
  if (!at(key).is_boolean()) fail("'" + key + "' is not true or false");
  return at(key).get<bool>();
}

int64_t JsonObject::integer(const std::string& key, int64_t least, int64_t most) const {
  return integer_of(at(key), where_ + ", '" + key + "'", least, most);
}

std::vector<int64_t> JsonObject::integers(const std::string& key, int64_t least) const {
  return integers_of(at(key), where_ + ", '" + key + "'", least);
}

std::vector<int64_t> integers_of(const Json& value, const std::string& where, int64_t least) {
  if (!value.is_array()) throw CheckpointError(where + " is not a list");
  std::vector<int64_t> numbers;
  numbers.reserve(value.size());
  for (const Json& one : value) numbers.push_back(integer_of(one, where, least, INT64_MAX));
  return numbers;
}

Json number_json(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

double number_of(const Json& value, const std::string& where) {
  if (value.is_number()) return value.get<double>();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  throw CheckpointError(where + " is not a number");
}

}  // namespace fsdp::detail
