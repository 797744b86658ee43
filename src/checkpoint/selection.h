// Selects the tensors of a model that a checkpoint has, and finds those that do not fit.
#pragma once

#include <fsdp/checkpoint.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/model_state.h"
#include "files/manifest.h"

namespace fsdp::detail {

// Maps the name of a model's tensor to its name in the checkpoint.
class Names {
 public:
  Names(const Manifest& manifest, const std::string& prefix, const Model& model, const LoadOptions& options);

  bool wanted(const std::string& name) const { return !options_.filter || options_.filter(name); }
  // A tied parameter may have been saved under another of its names.
  std::string saved(const std::string& name) const;

 private:
  std::string name_there(const std::string& name) const;

  const Manifest& manifest_;
  const LoadOptions& options_;
  std::map<std::string, std::vector<std::string>> tied_;
};

// Adds tensors that do not fit to the report.
class Selection {
 public:
  // `prefix` begins the names of the model's tensors: Note [Parts of a run].
  Selection(const Manifest& manifest, const std::string& prefix, const Model& model,
            const LoadOptions& options, LoadReport& report);

  std::vector<Held> params;
  std::vector<std::pair<Held, at::Tensor>> own;  // each rank's own tensors, and their targets
  std::set<std::string> seen;  // tensors of the checkpoint that the model has, whether they fit or not
  // The name in the checkpoint of a parameter that is loaded; "" for others.
  std::string saved_name(const std::string& name) const;
  std::set<std::string> saved_names() const;
  // Names in the model of the tensors that are loaded.
  std::set<std::string> names() const;

 private:
  bool select(Held& held, bool is_buffer);

  const Manifest& manifest_;
  Names names_;
  bool cast_;
  LoadReport& report_;
  std::map<std::string, std::string> taken_;
};

}  // namespace fsdp::detail
