// What tests of configurations share: a folder for config files, and resolving them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "app/config/resolve.h"
#include "app/config/value.h"

namespace fsdp::config {

class ConfigFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "fsdp-config-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& text, const std::string& name = "c.yaml") const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  // Resolves a file with this text. Machines of tests have two cores and no GPU.
  Resolution resolved(const std::string& text, Request request = {}, const Environment& environment = {},
                      const Machine& machine = {.gpus = 0, .cores = 2}) const {
    request.config = write(text);
    Resolution made = resolve(request, machine, environment);
    for (auto* lines : {&made.problems, &made.notes})
      for (std::string& line : *lines) line = without_folder(line);
    return made;
  }

  // Resolves a file with this text, which has no problem.
  Settings settings(const std::string& text, const Request& request = {}, const Environment& environment = {},
                    const Machine& machine = {.gpus = 0, .cores = 2}) const {
    const Resolution made = resolved(text, request, environment, machine);
    EXPECT_THAT(made.problems, ::testing::IsEmpty()) << text;
    return made.settings;
  }

  // The problems of a file with this text after a line that names a model.
  std::vector<std::string> problems(const std::string& text, const Request& request = {}) const {
    return resolved(kModel + text, request).problems;
  }

  static inline const std::string kModel = "model: {config: model_config_tiny_gpt2}\n";

 private:
  std::string without_folder(std::string text) const {
    const std::string prefix = folder_.string() + "/";
    for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix))
      text.erase(at, prefix.size());
    return text;
  }

  std::filesystem::path folder_;
};

// A value of `key` that is allowed and not its default; `second` gives another one where there are three.
inline Json other_value(const Key& key, bool second = false) {
  if (key.path == "model.config") return second ? "model_config_1B" : "model_config_tiny_llama";
  if (key.type == Type::flag)
    return second ? key.value : Json(!key.value.is_null() && !key.value.get<bool>());
  if (key.type == Type::list) return second ? Json{"c"} : Json{"a", "b"};
  if (key.type == Type::number) return std::min(key.most, second ? 0.25 : 0.5);
  if (key.type == Type::integer) return static_cast<int64_t>(std::max(key.least, second ? 4.0 : 2.0)) + 4;
  if (key.choices.empty()) return second ? "other" : "another";
  std::vector<std::string> others;
  for (const std::string& choice : key.choices)
    if (choice != key.value && choice != "auto") others.push_back(choice);
  if (!second) return others.front();
  return others.size() > 1 ? Json(others[1]) : key.value;
}

// "a.b.c" and 4: the line `a: {b: {c: 4}}`.
inline std::string nested(const std::string& path, const Json& value) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) return path + ": " + value.dump();
  return path.substr(0, dot) + ": {" + nested(path.substr(dot + 1), value) + "}";
}

// As typed after `--set key=`.
inline std::string typed(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// FSDP_SET_training__batch_size
inline std::string variable_of(const Key& key) {
  std::string name = "FSDP_SET_";
  for (const char c : key.path) name += c == '.' ? "__" : std::string(1, c);
  return name;
}

}  // namespace fsdp::config
