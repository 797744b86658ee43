#include "trainer/watch/records.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "trainer/watch/record_fields.h"

namespace fsdp::watch {

namespace {

using Json = nlohmann::ordered_json;  // keeps the order of members

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

template <typename T>
Json object_of(const T& value);

Json json_of(const std::string& text) { return text; }
Json json_of(int64_t number) { return number; }
Json json_of(bool flag) { return flag; }
Json json_of(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}
Json json_of(const std::optional<double>& number) { return number ? json_of(*number) : Json(); }
template <typename T>
Json json_of(const std::vector<std::pair<std::string, T>>& pairs) {
  Json object = Json::object();
  for (const auto& [key, value] : pairs) object[key] = value;
  return object;
}
template <typename T>
Json json_of(const std::vector<T>& values) {
  Json array = Json::array();
  for (const T& value : values) array.push_back(object_of(value));
  return array;
}
Json json_of(const StepTimes& times) { return object_of(times); }

struct ToJson {
  Json object = Json::object();

  template <typename T>
  void operator()(const char* name, const T& value) {
    object[name] = json_of(value);
  }
};

template <typename T>
Json object_of(const T& value) {
  ToJson visit;
  visit_fields(visit, value);
  return std::move(visit.object);
}

template <typename T>
void read_object(const Json& json, T& value);

void read(const Json& json, std::string& text) {
  if (!json.is_string()) fail("a text is expected");
  text = json.get_ref<const std::string&>();
}
void read(const Json& json, int64_t& number) {
  if (!json.is_number_integer()) fail("a whole number is expected");
  number = json.get<int64_t>();
}
void read(const Json& json, bool& flag) {
  if (!json.is_boolean()) fail("true or false is expected");
  flag = json.get<bool>();
}
void read(const Json& json, double& number) {
  if (json.is_number()) {
    number = json.get<double>();
    return;
  }
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  if (text == "nan")
    number = std::numeric_limits<double>::quiet_NaN();
  else if (text == "inf" || text == "-inf")
    number = text == "inf" ? HUGE_VAL : -HUGE_VAL;
  else
    fail("a number, \"nan\", \"inf\" or \"-inf\" is expected");
}
void read(const Json& json, std::optional<double>& number) {
  if (json.is_null())
    number.reset();
  else
    read(json, number.emplace());
}
template <typename T>
void read(const Json& json, std::vector<std::pair<std::string, T>>& pairs) {
  if (!json.is_object()) fail("an object is expected");
  for (const auto& [key, value] : json.items()) read(value, pairs.emplace_back(key, T()).second);
}
template <typename T>
void read(const Json& json, std::vector<T>& values) {
  if (!json.is_array()) fail("an array is expected");
  for (const Json& value : json) read_object(value, values.emplace_back());
}
void read(const Json& json, StepTimes& times) { read_object(json, times); }

struct FromJson {
  const Json& object;

  template <typename T>
  void operator()(const char* name, T& value) {
    const auto found = object.find(name);
    if (found == object.end()) fail(std::string("the member \"") + name + "\" is missing");
    try {
      read(*found, value);
    } catch (const std::runtime_error& error) {
      fail(std::string("\"") + name + "\": " + error.what());
    }
  }
};

template <typename T>
void read_object(const Json& json, T& value) {
  if (!json.is_object()) fail("an object is expected");
  FromJson visit{json};
  visit_fields(visit, value);
}

template <size_t I = 0>
Record record_of(const std::string& kind, const Json& json) {
  if constexpr (I == std::variant_size_v<Record>) {
    fail("\"" + kind + "\" is no kind of record");
  } else {
    if (kind != kKinds[I]) return record_of<I + 1>(kind, json);
    std::variant_alternative_t<I, Record> record;
    FromJson{json}("time", record.time);
    read_object(json, record);
    return record;
  }
}

}  // namespace

std::string to_json(const Record& record) {
  Json json = {{"kind", kKinds[record.index()]}};
  std::visit(
      [&](const auto& one) {
        ToJson visit{std::move(json)};
        visit("time", one.time);
        visit_fields(visit, one);
        json = std::move(visit.object);
      },
      record);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Record parse_record(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) fail("this is no JSON");
  if (!json.is_object()) fail("a JSON object is expected");
  const auto kind = json.find("kind");
  if (kind == json.end() || !kind->is_string()) fail("the member \"kind\" is missing");
  return record_of(kind->get_ref<const std::string&>(), json);
}

}  // namespace fsdp::watch
