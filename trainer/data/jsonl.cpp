#include "trainer/data/jsonl.h"

#include "trainer/data/error.h"
#include "trainer/data/json_file.h"

namespace fsdp::data {

namespace {

std::string keys_of(const Json& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) text += (text.empty() ? "'" : ", '") + key + "'";
  return text.empty() ? "no keys" : text;
}

std::string text_at(const Json& object, const std::string& key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end())
    throw DataError(where + ": there is no key '" + key + "', only " + keys_of(object));
  if (!found->is_string())
    throw DataError(where + ": the value of '" + key + "' is of type " + found->type_name() +
                    "; a string is expected");
  return found->get<std::string>();
}

}  // namespace

Example parse_example(std::string_view line, const std::string& where, const TextOptions& options) {
  Json object;
  try {
    object = Json::parse(line);
  } catch (const Json::parse_error& error) {
    throw DataError(where + ": not JSON, at byte " + std::to_string(error.byte) +
                    " of the line: " + reason_of(error));
  }
  if (!object.is_object())
    throw DataError(where + ": the line is of type " + object.type_name() +
                    R"(; an object such as {"text": "..."} is expected)");
  if (!options.text_key.empty()) return {"", text_at(object, options.text_key, where)};
  const bool text = object.contains("text"),
             pair = object.contains("prompt") && object.contains("completion");
  if (text && pair)
    throw DataError(where +
                    ": there is 'text' as well as 'prompt' and 'completion'; only one of them is expected");
  if (text) return {"", text_at(object, "text", where)};
  if (pair) return {text_at(object, "prompt", where), text_at(object, "completion", where)};
  throw DataError(where + ": there are the keys " + keys_of(object) +
                  "; 'text', or 'prompt' and 'completion' are expected");
}

}  // namespace fsdp::data
