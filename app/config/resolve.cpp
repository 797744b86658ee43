#include "app/config/resolve.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "app/config/check.h"
#include "app/config/derive.h"
#include "app/config/document.h"
#include "app/config/example.h"
#include "app/config/layers.h"
#include "app/config/near.h"
#include "app/config/overrides.h"
#include "app/config/value.h"

namespace fsdp::config {

namespace {

constexpr const char* kStandardFile = "config.yaml";
constexpr const char* kStandardStage = "stage1";

const Document& built_in() {
  static const Document document = [] {
    Problems problems;
    Document made = read_document(example_config(), kExampleName, problems);
    if (!problems.empty())
      throw std::logic_error("the built-in config is wrong: " + problems.lines().front());
    return made;
  }();
  return document;
}

class Resolving {
 public:
  Resolving(const Request& request, const Environment& environment) : request_(request) {
    if (request_.run_config)
      run_ =
          read_document(read_config_file(*request_.run_config, problems_), *request_.run_config, problems_);
    if (request_.run_config && !request_.config)
      take_run_for_file();
    else
      read_file();
    overrides_ = read_overrides(request, environment, problems_);
  }

  Resolution result(const Machine& machine) {
    if (is_readable_) merge();
    const bool is_sound = problems_.empty();
    for (const std::string& note : layers_.notes()) made_.notes.push_back(note);
    if (is_readable_) complete(machine, is_sound);
    made_.problems = problems_.lines();
    return std::move(made_);
  }

 private:
  // Stage and model configs are the run's; its values are added by merge().
  void take_run_for_file() {
    path_ = *request_.run_config;
    document_.file = path_;
    document_.model_configs = run_.model_configs;
    for (const NamedSection& stage : run_.stages) document_.stages.push_back({stage.name, stage.where, {}});
    is_readable_ = problems_.empty();
  }

  void read_file() {
    if (request_.config)
      path_ = *request_.config;
    else if (::access(kStandardFile, F_OK) == 0)
      path_ = kStandardFile;
    if (request_.config && path_.empty()) {
      problems_.add("flag --config", "", "found an empty text, expected the path of a config file");
      is_readable_ = false;
      return;
    }
    if (path_.empty()) {
      document_ = built_in();
      made_.notes.emplace_back(
          "config: there is no config.yaml here, so it is the one built in "
          "(`fsdp config --example` prints it)");
      return;
    }
    if (!request_.config) made_.notes.emplace_back("config: config.yaml of this folder");
    document_ = read_document(read_config_file(path_, problems_), path_, problems_);
    const bool is_empty = document_.values.empty() && document_.stages.empty() && document_.presets.empty() &&
                          document_.model_configs.empty();
    is_readable_ = problems_.empty() || !is_empty;
  }

  void merge() {
    add(run_.values, Layer::run);
    for (const NamedSection& stage : run_.stages) add(stage.values, Layer::run);
    add(document_.values, Layer::section);
    add_stage();
    add_preset();
    for (const Override& one : overrides_)
      if (one.model_config.empty()) layers_.add(*one.key, one.value, one.origin);
    add_model_config(choose_model());
  }

  void add(const std::vector<Assignment>& values, Layer layer) {
    for (const Assignment& one : values) layers_.add(*one.key, one.value, {layer, one.where});
  }

  void add_stage() {
    made_.stages = Document::names(document_.stages);
    if (made_.stages.empty()) made_.stages.emplace_back(kStandardStage);
    stage_ = request_.stage.value_or(made_.stages.front());
    if (const NamedSection* stage = Document::find(document_.stages, stage_); stage != nullptr)
      add(stage->values, Layer::stage);
    else
      is_stage_known_ = stage_ == made_.stages.front();
    if (!is_stage_known_) problems_.add("flag --stage", "", unknown_name("stage", stage_, made_.stages));
  }

  void add_preset() {
    if (!request_.fsdp_config) return;
    if (const NamedSection* preset = find_section(&Document::presets, *request_.fsdp_config);
        preset != nullptr)
      add(preset->values, Layer::preset);
    else
      problems_.add("flag --fsdp-config", "",
                    unknown_name("preset", *request_.fsdp_config, section_names(&Document::presets)));
  }

  // The model config of the run; null: it has none.
  const NamedSection* choose_model() {
    const std::string key = "model.config";
    drop_lesser_models();
    if (given(key) == nullptr && !replaced(key) && given("model.script") == nullptr &&
        given("model.pretrained") == nullptr)
      only_model_config();
    const Candidate* chosen = replaced(key) ? nullptr : given(key);
    if (chosen == nullptr) return nullptr;
    const std::string name = chosen->value.get<std::string>();
    const NamedSection* found = find_section(&Document::model_configs, name);
    if (found == nullptr)
      problems_.add(chosen->origin.text, key,
                    unknown_name("model config", name, section_names(&Document::model_configs)));
    return found;
  }

  // The file names no model: it is the file's only model config.
  void only_model_config() {
    if (document_.model_configs.size() == 1) {
      layers_.add(*find_key("model.config"), document_.model_configs.front().name,
                  {Layer::standard, "the file's only model config"});
    } else if (!request_.own_model && is_stage_known_) {
      problems_.add(document_.file + ":1", "model.config",
                    "found no model, expected the name of a model config (" +
                        one_of(section_names(&Document::model_configs)) +
                        "), model.script or model.pretrained. --model-config names one, too");
    }
  }

  // A later layer may name another kind of model: a flag's model config replaces the script of the file.
  void drop_lesser_models() {
    const std::vector<std::string> keys{"model.config", "model.script", "model.pretrained"};
    const Candidate* best = nullptr;
    std::string best_key;
    for (const std::string& key : keys)
      if (const Candidate* one = given(key); one && (!best || one->origin.layer > best->origin.layer)) {
        best = one;
        best_key = key;
      }
    for (const std::string& key : keys) {
      const Candidate* one = given(key);
      if (one == nullptr || key == best_key) continue;
      if (one->origin.layer == best->origin.layer) {
        problems_.add(one->origin.text, key,
                      "found a second model, but " + best_key + " (" + best->origin.text +
                          ") names one: remove one of them");
        continue;
      }
      replaced_.emplace_back(key, best->origin);
      made_.notes.push_back(best_key + ": " + shown(best->value) + " (" + best->origin.text +
                            ") instead of " + key + " " + shown(one->value) + " (" + one->origin.text + ")");
    }
  }

  void add_model_config(const NamedSection* model) {
    for (const NamedSection& own : run_.model_configs)
      if (model != nullptr && own.name == model->name) add(own.values, Layer::run);
    if (model != nullptr && !is_of_run(*model)) add(model->values, Layer::section);
    for (const Override& one : overrides_) {
      if (one.model_config.empty()) continue;
      if (find_section(&Document::model_configs, one.model_config) == nullptr)
        problems_.add(
            one.origin.text, "",
            unknown_name("model config", one.model_config, section_names(&Document::model_configs)));
      else if (model != nullptr && model->name == one.model_config)
        layers_.add(*one.key, one.value, one.origin);
      else
        made_.notes.push_back(one.origin.text + " has no effect: the run has another model");
    }
  }

  // If there are problems already, contradictions may only follow from them, so the batch is not checked.
  void complete(const Machine& machine, bool is_sound) {
    Settings& settings = made_.settings;
    settings.set_source(stage_, path_);
    layers_.fill(settings);
    for (const auto& [key, origin] : replaced_)
      settings.set(key, nullptr, {Layer::derived, "replaced by " + origin.text});
    Problems ignored;
    derive(settings, machine, made_.notes, is_sound ? problems_ : ignored);
    check(settings, machine, made_.notes, problems_);
    if (request_.will_start) check_machine(settings, machine, problems_);
  }

  bool is_of_run(const NamedSection& model) const {
    const NamedSection* run = Document::find(run_.model_configs, model.name);
    return run != nullptr && run->where == model.where;
  }

  const Candidate* given(const std::string& key) const {
    const Candidate* winner = layers_.winner(key);
    return winner == nullptr || winner->value.is_null() ? nullptr : winner;
  }

  bool replaced(const std::string& key) const {
    return std::any_of(replaced_.begin(), replaced_.end(), [&](const auto& one) { return one.first == key; });
  }

  using Sections = std::vector<NamedSection> Document::*;

  const NamedSection* find_section(Sections sections, const std::string& name) const {
    const NamedSection* own = Document::find(document_.*sections, name);
    const NamedSection* run = own != nullptr ? own : Document::find(run_.*sections, name);
    return run != nullptr ? run : Document::find(built_in().*sections, name);
  }

  std::vector<std::string> section_names(Sections sections) const {
    std::vector<std::string> names = Document::names(document_.*sections);
    for (const std::string& name : Document::names(built_in().*sections))
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    return names;
  }

  static std::string unknown_name(const std::string& what, const std::string& name,
                                  const std::vector<std::string>& known) {
    std::string advice = did_you_mean(name, known);
    for (const std::string& one : known)  // `7B` for model_config_7B
      if (!name.empty() && one.ends_with("_" + name)) advice = ", did you mean '" + one + "'?";
    return "found an unknown " + what + " '" + name + "', expected " + one_of(known) + advice;
  }

  const Request& request_;
  Problems problems_;
  Document document_, run_;
  std::vector<Override> overrides_;
  Layers layers_;
  std::vector<std::pair<std::string, Origin>> replaced_;  // models that a later layer replaced
  std::string path_, stage_;
  bool is_readable_ = true, is_stage_known_ = true;
  Resolution made_;
};

}  // namespace

Resolution resolve(const Request& request, const Machine& machine, const Environment& environment) {
  return Resolving(request, environment).result(machine);
}

}  // namespace fsdp::config
