#include "app/config/overrides.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "app/config/near.h"
#include "app/config/value.h"
#include "app/config/yaml_tree.h"

namespace fsdp::config {

namespace {

constexpr const char* kVariablePrefix = "FSDP_SET_";

// "FSDP_SET_training__batch_size" -> "training.batch_size".
std::string path_of_variable(const std::string& variable) {
  std::string path = variable.substr(std::string(kVariablePrefix).size());
  for (size_t at = path.find("__"); at != std::string::npos; at = path.find("__", at + 1))
    path.replace(at, 2, ".");
  return path;
}

class Reading {
 public:
  explicit Reading(Problems& problems) : problems_(problems) {}

  void set(std::string path, const std::string& text, const Origin& origin) {
    std::string model_config;
    const size_t dot = path.rfind('.');
    if (path.starts_with(kModelConfigPrefix) && dot != std::string::npos) {
      model_config = path.substr(0, dot);
      path = kModelConfig + path.substr(dot);
    }
    const Key* key = find_key(path);
    if (key == nullptr) return unknown(path, origin);
    if (line_of_bad_utf8(text) != 0)
      return problems_.add(origin.text, path, "found bytes that are not UTF-8, expected a text");
    Parsed parsed = parse_typed(*key, text);
    if (!parsed.problem.empty()) return problems_.add(origin.text, path, parsed.problem);
    for (const Override& other : made_)
      if (other.key == key && other.origin.layer == origin.layer && other.value != parsed.value)
        problems_.add(
            origin.text, path,
            "found " + shown(parsed.value) + ", but " + other.origin.text + " says " + shown(other.value));
    made_.push_back({key, std::move(parsed.value), origin, std::move(model_config)});
  }

  // "a.b=c".
  void assignment(const std::string& text, Layer layer, const std::string& by) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      return problems_.add(by, text, "found no `=`, expected a key and a value, as in training.batch_size=4");
    const std::string path = text.substr(0, equals);
    set(path, text.substr(equals + 1), {layer, by + " " + path});
  }

  std::vector<Override> result() { return std::move(made_); }

 private:
  void unknown(const std::string& path, const Origin& origin) {
    std::vector<std::string> paths, same_name;
    const std::string name = path.substr(path.rfind('.') + 1);
    for (const Key& key : schema()) {
      paths.push_back(key.path);
      if (key.name() == name) same_name.push_back(key.path);
    }
    const std::string advice =
        same_name.empty() ? did_you_mean(path, paths) : ", did you mean '" + one_of(same_name) + "'?";
    problems_.add(origin.text, path,
                  "found an unknown key, expected one that `fsdp config --explain` lists" + advice);
  }

  Problems& problems_;
  std::vector<Override> made_;
};

}  // namespace

std::vector<Override> read_overrides(const Request& request, const Environment& environment,
                                     Problems& problems) {
  Reading reading(problems);
  for (const std::string& text : request.defaults) reading.assignment(text, Layer::argument, "argument");
  for (const auto& [name, value] : environment)
    if (name.starts_with(kVariablePrefix))
      reading.set(path_of_variable(name), value, {Layer::environment, "environment " + name});
  const std::vector<std::tuple<const char*, const char*, const std::optional<std::string>*>> flags{
      {"mode", "--mode", &request.mode},
      {"model.config", "--model-config", &request.model_config},
      {"distributed.num_nodes", "--num-nodes", &request.num_nodes},
      {"distributed.devices", "--devices", &request.devices},
      {"training.precision", "--precision", &request.precision}};
  for (const auto& [path, flag, text] : flags)
    if (text->has_value()) reading.set(path, **text, {Layer::flag, std::string("flag ") + flag});
  for (const std::string& text : request.sets) reading.assignment(text, Layer::flag, "flag --set");
  return reading.result();
}

Environment process_environment() {
  Environment found;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
    const std::string text = *one;
    const size_t equals = text.find('=');
    if (text.starts_with(kVariablePrefix) && equals != std::string::npos)
      found[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return found;
}

}  // namespace fsdp::config
