#include <fsdp/error.h>

#include <algorithm>
#include <set>

#include "checkpoint/errors.h"
#include "checkpoint/meeting.h"
#include "checkpoint/optimizer_state.h"
#include "checkpoint/run_state.h"
#include "checkpoint/save.h"
#include "checkpoint/tensor_files.h"
#include "files/hf_manifest.h"
#include "files/run_folder.h"
#include "runtime/model.h"

namespace fsdp {

namespace detail {

namespace {

// The checkpoint's name of a tensor of the model.
class Names {
 public:
  Names(const Manifest& manifest, const Model& model, const LoadOptions& options)
      : manifest_(manifest), options_(options) {
    for (const UnitParam* param : model.params)
      if (param->names.size() > 1) tied_[param->names.front()] = param->names;
  }

  bool wanted(const std::string& name) const { return !options_.filter || options_.filter(name); }

  // A tied parameter may have been saved under another of its names.
  std::string saved(const std::string& name) const {
    const auto tied = tied_.find(name);
    for (const std::string& one : tied != tied_.end() ? tied->second : std::vector<std::string>{name}) {
      const std::string renamed = name_there(one);
      if (manifest_.tensors.contains(renamed)) return renamed;
      if (const auto alias = manifest_.aliases.find(renamed); alias != manifest_.aliases.end())
        return alias->second;
    }
    return name_there(name);
  }

 private:
  std::string name_there(const std::string& name) const {
    const std::string renamed = options_.rename ? options_.rename(name) : name;
    return manifest_.foreign ? hf_name(manifest_, renamed) : renamed;
  }

  const Manifest& manifest_;
  const LoadOptions& options_;
  std::map<std::string, std::vector<std::string>> tied_;
};

std::string shape_words(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// What of the model is to be loaded, and what does not fit.
class Selection {
 public:
  Selection(const Manifest& manifest, const Model& model, const LoadOptions& options, LoadReport& report)
      : manifest_(manifest), names_(manifest, model, options), cast_(options.cast), report_(report) {
    for (Holding& param : held_params(model))
      if (select(param.held, false)) params.push_back(std::move(param.held));
    for (const auto& [name, tensor] : own_tensors(model)) {
      Held whole = make_whole(name, tensor);
      if (select(whole, true)) own.push_back({std::move(whole), tensor});
    }
    if (options.filter) return;
    for (const auto& [name, tensor] : manifest.tensors)
      if (!seen_.contains(name) && manifest.is_of_model(tensor) &&
          !(manifest.foreign && is_computed_today(name)))
        report_.unexpected.push_back(name);
  }

  std::vector<Held> params;
  std::vector<std::pair<Held, at::Tensor>> own;  // each rank's own tensors, and where they belong
  // What the checkpoint calls a parameter that is loaded; "" for others.
  std::string saved_name(const std::string& name) const {
    const auto found = taken_.find(name);
    return found == taken_.end() ? "" : found->second;
  }

 private:
  bool select(Held& held, bool is_buffer) {
    const std::string name = held.name;
    if (!names_.wanted(name)) return false;
    held.name = names_.saved(name);
    const auto found = manifest_.tensors.find(held.name);
    if (found == manifest_.tensors.end()) {
      if (!is_buffer || !manifest_.foreign) report_.missing.push_back(name);
      return false;
    }
    seen_.insert(held.name);
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
    taken_[name] = held.name;
    return true;
  }

  const Manifest& manifest_;
  Names names_;
  bool cast_;
  LoadReport& report_;
  std::set<std::string> seen_;
  std::map<std::string, std::string> taken_;
};

void add_list(std::string& text, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += std::string("\n  ") + what + " (" + std::to_string(names.size()) + "):";
  for (const std::string& name : names) text += " " + name + (&name == &names.back() ? "" : ",");
}

void require_fit(const LoadReport& report) {
  std::string text;
  add_list(text, "missing in the checkpoint", report.missing);
  add_list(text, "unexpected in the checkpoint", report.unexpected);
  add_list(text, "different", report.mismatched);
  add_list(text, "of the optimizer", report.optimizer);
  if (!text.empty())
    throw CheckpointError("the checkpoint " + report.path + " does not fit the model; nothing was loaded." +
                          text +
                          "\nLoadOptions has strict = false, rename and filter for what is meant to differ");
}

// Everything a load needs, made ready before anything is changed.
struct Prepared {
  Manifest manifest;
  std::optional<Selection> model;
  std::optional<OptimizerState> optimizer;
  std::vector<Held> moments;
  RunTensors run;
  std::optional<TensorReader> reader;
};

void prepare_optimizer(Prepared& prepared, const Model& model, RunState& run,
                       std::vector<std::string>& errors) {
  const Manifest& manifest = prepared.manifest;
  prepared.optimizer.emplace(model, *run.optimizer, run.optimizer_format);
  if (!manifest.run.contains("optimizer")) {
    errors.push_back("the checkpoint has no optimizer (LoadOptions::weights_only loads the model alone)");
    return;
  }
  const JsonObject saved(manifest.run.at("optimizer"), "the saved optimizer");
  const size_t groups = saved.at("groups").size();
  if (saved.text("type") != prepared.optimizer->type())
    errors.push_back("the checkpoint has a " + saved.text("type") + ", the run has a " +
                     prepared.optimizer->type());
  else if (groups != run.optimizer->param_groups().size())
    errors.push_back("the checkpoint has " + std::to_string(groups) + " parameter groups, the run has " +
                     std::to_string(run.optimizer->param_groups().size()));
  else
    prepared.moments = prepared.optimizer->prepare(
        manifest, [&](const std::string& name) { return prepared.model->saved_name(name); }, errors);
}

// A checkpoint of ours, or a Hugging Face folder.
struct Opened {
  std::string folder;
  Manifest manifest;
  std::string identity;  // the same on all ranks that see the same
};

Opened open_checkpoint(FileOps& files, const std::string& path) {
  if (!files.exists(path + "/" + kManifestName) && is_hf_folder(files, path)) {
    Opened opened{.folder = path, .manifest = hf_manifest(files, path), .identity = {}};
    for (const SavedFile& file : opened.manifest.files) opened.identity += to_hex(file.header);
    return opened;
  }
  const OpenCheckpoint found = find_checkpoint(files, path);
  return {.folder = found.folder,
          .manifest = Manifest::parse(found.manifest_text, found.folder + "/" + kManifestName),
          .identity = to_hex(hash128(found.manifest_text))};
}

void prepare(Prepared& prepared, FileOps& files, const Model& model, RunState& run,
             const LoadOptions& options, LoadReport& report) {
  const Manifest& manifest = prepared.manifest;
  report.step = manifest.step;
  report.ranks = manifest.world;
  prepared.model.emplace(manifest, model, options, report);
  if (!options.weights_only) {
    if (run.optimizer != nullptr) prepare_optimizer(prepared, model, run, report.optimizer);
    prepared.run = prepare_run(run, model, manifest);
  }
  if (options.strict) require_fit(report);
  if (!report.optimizer.empty()) {
    prepared.optimizer.reset();
    prepared.moments.clear();
  }
  TensorReader& reader = prepared.reader.emplace(files, report.path, manifest);
  const bool something_to_lose =
      model.called || (run.optimizer != nullptr && !run.optimizer->state().empty());
  if (!options.verify_first.value_or(something_to_lose)) return;
  reader.verify(prepared.model->params);
  for (const auto& [held, tensor] : prepared.model->own) reader.verify({held});
  reader.verify(prepared.moments);
  reader.verify(prepared.run.holes);
}

void fill(Prepared& prepared, Model& model, RunState& run, const LoadOptions& options) {
  TensorReader& reader = *prepared.reader;
  announce_writes(model);
  reader.fill(prepared.model->params);
  for (auto& [held, tensor] : prepared.model->own) {
    Held fresh = held;
    fresh.flat = held.flat.clone();  // `flat` may be the tensor's own memory
    reader.fill({fresh});
    const at::Tensor values = held.real_pairs ? fresh.flat.view(at::kComplexDouble) : fresh.flat;
    tensor.detach().copy_(values.view(tensor.sizes()));
  }
  if (options.weights_only) return;
  reader.fill(prepared.moments);
  reader.fill(prepared.run.holes);
  if (prepared.optimizer) prepared.optimizer->attach(prepared.manifest.run.at("optimizer").at("groups"));
  set_run(run, model, prepared.manifest.run);
  set_run_tensors(run, model, prepared.manifest, prepared.run);
  run.step = prepared.manifest.step;
}

}  // namespace

LoadReport load_run(FileOps& files, const std::string& path, RunState& run, const LoadOptions& options) {
  Model& model = model_of(run.model.engine());
  model.check_between_steps("load()");
  const at::NoGradGuard no_grad;
  Meeting meeting(model.world, "loading " + path, options.timeout);
  Opened opened;
  meeting.agree(error_of([&] {
    if (model.world.rank() == 0) opened = open_checkpoint(files, path);
  }));
  const std::string folder = meeting.from_0(opened.folder), identity = meeting.from_0(opened.identity);

  LoadReport report{.path = folder,
                    .step = 0,
                    .ranks = 0,
                    .missing = {},
                    .unexpected = {},
                    .mismatched = {},
                    .optimizer = {}};
  Prepared prepared;
  meeting.agree(error_of([&] {
    if (model.world.rank() != 0) opened = open_checkpoint(files, folder);
    if (opened.identity != identity)
      throw CheckpointError(
          folder + " is not the same as on rank 0. A checkpoint needs a folder that all ranks share");
    prepared.manifest = std::move(opened.manifest);
    prepare(prepared, files, model, run, options, report);
  }));
  const std::string error = error_of([&] { fill(prepared, model, run, options); });
  try {
    meeting.agree(error);
  } catch (...) {
    model.half_loaded = "fsdp: the parameters are half those of " + folder +
                        ", which could not be read to its end. load() a checkpoint that is whole, or shard "
                        "a new module";
    throw;
  }
  meeting.end();
  if (!options.filter && report.missing.empty() && report.mismatched.empty()) model.half_loaded.clear();
  return report;
}

}  // namespace detail

LoadReport load(const std::string& folder, RunState& run, const LoadOptions& options) {
  return detail::load_run(detail::posix_files(), folder, run, options);
}

bool has_checkpoint(const std::string& folder) {
  detail::FileOps& files = detail::posix_files();
  return files.exists(folder + "/" + detail::kManifestName) ||
         detail::RunFolder(files, folder).latest().has_value();
}

}  // namespace fsdp
