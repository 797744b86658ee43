#include "checkpoint/selection.h"

#include "files/hf_names.h"

namespace fsdp::detail {

namespace {

std::string shape_words(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

Names::Names(const Manifest& manifest, const std::string& prefix, const Model& model,
             const LoadOptions& options)
    : manifest_(manifest), options_(options) {
  for (const UnitParam* param : model.params)
    if (param->names.size() > 1)
      for (const std::string& name : param->names)
        tied_[prefix + param->names.front()].push_back(prefix + name);
}

std::string Names::saved(const std::string& name) const {
  const auto tied = tied_.find(name);
  for (const std::string& one : tied != tied_.end() ? tied->second : std::vector<std::string>{name}) {
    const std::string renamed = name_there(one);
    if (manifest_.tensors.contains(renamed)) return renamed;
    if (const auto alias = manifest_.aliases.find(renamed); alias != manifest_.aliases.end())
      return alias->second;
  }
  return name_there(name);
}

std::string Names::name_there(const std::string& name) const {
  const std::string renamed = options_.rename ? options_.rename(name) : name;
  return manifest_.foreign ? hf_name(manifest_, renamed) : renamed;
}

Selection::Selection(const Manifest& manifest, const std::string& prefix, const Model& model,
                     const LoadOptions& options, LoadReport& report)
    : manifest_(manifest), names_(manifest, prefix, model, options), cast_(options.cast), report_(report) {
  for (Holding& param : held_params(model)) {
    param.held.name = prefix + param.held.name;
    if (select(param.held, false)) params.push_back(std::move(param.held));
  }
  const auto buffers = model.module.named_buffers();
  for (const auto& [name, tensor] : own_tensors(model)) {
    Held whole = make_whole(prefix + name, tensor);
    if (select(whole, buffers.contains(name))) own.push_back({std::move(whole), tensor});
  }
}

std::string Selection::saved_name(const std::string& name) const {
  const auto found = taken_.find(name);
  return found == taken_.end() ? "" : found->second;
}

std::set<std::string> Selection::saved_names() const {
  std::set<std::string> names;
  for (const auto& [name, saved] : taken_) names.insert(saved);
  return names;
}

std::set<std::string> Selection::names() const {
  std::set<std::string> names;
  for (const auto& [name, saved] : taken_) names.insert(name);
  return names;
}

bool Selection::select(Held& held, bool is_buffer) {
  const std::string name = held.name;
  if (!names_.wanted(name)) return false;
  held.name = names_.saved(name);
  const auto found = manifest_.tensors.find(held.name);
  if (found == manifest_.tensors.end()) {
    if (!is_buffer || !manifest_.foreign) report_.missing.push_back(name);
    return false;
  }
  seen.insert(held.name);
  const SavedTensor& saved = found->second;
  if (saved.shape != held.shape || saved.real_pairs != held.real_pairs) {
    report_.mismatched.push_back("'" + name + "' has the shape " + shape_words(held.shape) +
                                 ", in the checkpoint " + shape_words(saved.shape));
    return false;
  }
  const auto dtype = dtype_of(saved.dtype);
  const at::ScalarType mine = held.flat.scalar_type();
  const bool castable = cast_ && dtype && c10::isFloatingType(*dtype) && c10::isFloatingType(mine);
  if (dtype != mine && !castable) {
    report_.mismatched.push_back("'" + name + "' has the dtype " + dtype_name(mine, name) +
                                 ", in the checkpoint " + saved.dtype +
                                 (cast_ ? "" : " (LoadOptions::cast converts floating-point values)"));
    return false;
  }
  if (dtype != mine)
    report_.cast.push_back("'" + name + "' has the dtype " + dtype_name(mine, name) + " in the model, " +
                           saved.dtype + " in the checkpoint");
  taken_[name] = held.name;
  return true;
}

}  // namespace fsdp::detail
