// The resolved configuration of one run: every key's value, and where it came from.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "app/config/schema.h"

namespace fsdp::config {

// The origins of a value. A later one in this list overrides an earlier one.
enum class Layer : uint8_t {
  standard,     // the schema's default
  argument,     // a C++ caller's default
  run,          // what the run that goes on began with
  section,      // a section at top level of the file
  stage,        // a section of the stage
  preset,       // the preset of --fsdp-config
  environment,  // FSDP_SET_...
  flag,         // the command line
  derived,      // follows from other values, the machine or --mode
};

struct Origin {
  Layer layer = Layer::standard;
  std::string text = "default";  // "config.yaml:12", "flag --devices"
};

// Values by key. Asking for a key that the schema does not have, in another type than its value has, or that
// is not set, throws std::logic_error.
//
// Copies share the record of keys that were read; it may be asked for from any thread.
class Settings {
 public:
  Settings();

  bool flag(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;  // an integer too
  std::string text(const std::string& key) const;
  std::vector<std::string> list(const std::string& key) const;
  // False if it is not set.
  bool has(const std::string& key) const;
  // True if its value is true or false: forward_prefetch and limit_all_gathers may be that or a number.
  bool is_flag(const std::string& key) const;

  const Origin& origin(const std::string& key) const;
  // The value, also null. Not recorded as read.
  const Json& peek(const std::string& key) const;
  // True if somebody set it: the file, a preset, the environment, a flag or a C++ caller.
  bool is_given(const std::string& key) const;

  // num_nodes x devices.
  int64_t ranks() const;
  // The stage of the run, and the file that was read; "" is the one built in.
  const std::string& stage() const { return stage_; }
  const std::string& file() const { return file_; }
  // The file's name without folder and ending, "example" for the one built in: names the run's folder.
  std::string name() const;

  void set(const std::string& key, Json value, Origin origin);
  void set_source(std::string stage, std::string file);

  // Sorted. Reading by flag(), integer(), number(), text(), list() or has() counts.
  std::vector<std::string> keys_read() const;
  bool same_values(const Settings& other) const;

  // All of it, for another process. from_json() throws std::runtime_error unless to_json() wrote it.
  Json to_json() const;
  static Settings from_json(const Json& json);
  // A config file that resolves to the same values, with the origins as comments.
  std::string to_yaml() const;

 private:
  struct Entry {
    Json value;
    Origin origin;
  };
  struct Record;

  const Entry& entry(const std::string& key) const;
  // The value, recorded as read. Throws unless it is of a type that `wanted` names.
  const Json& read(const std::string& key, bool (*fits)(const Json&), const char* wanted) const;

  std::map<std::string, Entry> entries_;
  std::string stage_, file_;
  std::shared_ptr<Record> record_;
};

}  // namespace fsdp::config
