#include "app/config/settings.h"

#include <mutex>
#include <set>
#include <stdexcept>

#include "app/config/value.h"

namespace fsdp::config {

struct Settings::Record {
  std::mutex mutex;
  std::set<std::string> keys;
};

Settings::Settings() : record_(std::make_shared<Record>()) {
  for (const Key& key : schema()) entries_[key.path] = {key.value, {}};
}

const Settings::Entry& Settings::entry(const std::string& key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) throw std::logic_error("the configuration has no key '" + key + "'");
  return found->second;
}

const Json& Settings::read(const std::string& key, bool (*fits)(const Json&), const char* wanted) const {
  const Json& value = entry(key).value;
  {
    const std::lock_guard lock(record_->mutex);
    record_->keys.insert(key);
  }
  if (!fits(value))
    throw std::logic_error("configuration: " + key + " is " + shown(value) + ", not " + wanted);
  return value;
}

bool Settings::flag(const std::string& key) const {
  return read(
             key, [](const Json& value) { return value.is_boolean(); }, "true or false")
      .get<bool>();
}

int64_t Settings::integer(const std::string& key) const {
  return read(
             key, [](const Json& value) { return value.is_number_integer(); }, "an integer")
      .get<int64_t>();
}

double Settings::number(const std::string& key) const {
  return read(
             key, [](const Json& value) { return value.is_number(); }, "a number")
      .get<double>();
}

std::string Settings::text(const std::string& key) const {
  return read(
             key, [](const Json& value) { return value.is_string(); }, "a text")
      .get<std::string>();
}

std::vector<std::string> Settings::list(const std::string& key) const {
  return read(
             key, [](const Json& value) { return value.is_array(); }, "a list")
      .get<std::vector<std::string>>();
}

bool Settings::has(const std::string& key) const {
  return !read(
              key, [](const Json&) { return true; }, "")
              .is_null();
}

bool Settings::is_flag(const std::string& key) const {
  return read(
             key, [](const Json&) { return true; }, "")
      .is_boolean();
}

const Origin& Settings::origin(const std::string& key) const { return entry(key).origin; }

const Json& Settings::peek(const std::string& key) const { return entry(key).value; }

bool Settings::is_given(const std::string& key) const {
  const Layer layer = entry(key).origin.layer;
  return layer != Layer::standard && layer != Layer::run && layer != Layer::derived;
}

int64_t Settings::ranks() const { return integer("distributed.num_nodes") * integer("distributed.devices"); }

std::string Settings::name() const {
  if (file_.empty()) return "example";
  std::string name = file_.substr(file_.rfind('/') + 1);
  const size_t dot = name.rfind('.');
  if (dot != std::string::npos && dot > 0) name.resize(dot);
  return name;
}

void Settings::set(const std::string& key, Json value, Origin origin) {
  entry(key);
  entries_[key] = {std::move(value), std::move(origin)};
}

void Settings::set_source(std::string stage, std::string file) {
  stage_ = std::move(stage);
  file_ = std::move(file);
}

std::vector<std::string> Settings::keys_read() const {
  const std::lock_guard lock(record_->mutex);
  return {record_->keys.begin(), record_->keys.end()};
}

bool Settings::same_values(const Settings& other) const {
  for (const auto& [key, entry] : entries_)
    if (entry.value != other.entry(key).value) return false;
  return stage_ == other.stage_;
}

Json Settings::to_json() const {
  Json values = Json::object();
  for (const Key& key : schema()) {
    const Entry& one = entry(key.path);
    values[key.path] = {
        {"value", one.value}, {"layer", static_cast<int>(one.origin.layer)}, {"origin", one.origin.text}};
  }
  return {{"stage", stage_}, {"file", file_}, {"values", std::move(values)}};
}

Settings Settings::from_json(const Json& json) try {
  Settings settings;
  settings.set_source(json.at("stage").get<std::string>(), json.at("file").get<std::string>());
  for (const Key& key : schema()) {
    const Json& one = json.at("values").at(key.path);
    const int layer = one.at("layer").get<int>();
    if (layer < 0 || layer > static_cast<int>(Layer::derived)) throw std::runtime_error("an unknown layer");
    settings.set(key.path, one.at("value"), {static_cast<Layer>(layer), one.at("origin").get<std::string>()});
  }
  return settings;
} catch (const std::exception& error) {
  throw std::runtime_error(std::string("the settings are not those of this version of fsdp: ") +
                           error.what());
}

}  // namespace fsdp::config
