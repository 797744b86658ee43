#include "layout/module_tree.h"

#include <set>
#include <stdexcept>
#include <utility>

#include "layout/near_names.h"

namespace fsdp::detail {

namespace {

// One walk over the tree finds the parameters that the paths reach, and all names.
class PathWalk {
 public:
  explicit PathWalk(const std::vector<std::string>& paths) : paths_(paths.begin(), paths.end()) {}

  void visit(const ModuleDecl& module, bool inside) {
    inside = named(module.path) || inside;
    for (const ParamDecl& param : module.params) {
      const bool wanted = named(param.name) || inside;
      if (wanted && found_.insert(param.id).second) ids_.push_back(param.id);
    }
    for (const ModuleDecl& child : module.children) visit(child, inside);
  }

  void require_all(const std::vector<std::string>& paths) const {
    const std::set<std::string> there(names_.begin(), names_.end());
    for (const std::string& path : paths)
      if (!there.contains(path)) throw std::invalid_argument(nothing_is_named(path));
  }

  std::vector<ParamId> ids() && { return std::move(ids_); }

 private:
  bool named(const std::string& name) {
    names_.push_back(name);
    return paths_.contains(name);
  }

  std::string nothing_is_named(const std::string& path) const {
    std::string text = "no module or parameter '" + path + "'";
    const char* before = "; near names: ";
    for (const std::string& name : near_names(path, names_)) {
      text += before + name;
      before = ", ";
    }
    return text;
  }

  const std::set<std::string> paths_;
  std::vector<std::string> names_;
  std::set<ParamId> found_;
  std::vector<ParamId> ids_;
};

}  // namespace

std::vector<ParamId> params_under(const ModuleDecl& root, const std::vector<std::string>& paths) {
  PathWalk walk(paths);
  walk.visit(root, false);
  walk.require_all(paths);
  return std::move(walk).ids();
}

}  // namespace fsdp::detail
