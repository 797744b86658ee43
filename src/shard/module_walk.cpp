#include "shard/module_walk.h"

#include <c10/util/Exception.h>

#include <map>
#include <string_view>

#include "runtime/unit.h"
#include "watch/tag.h"

namespace fsdp::detail {

namespace {

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

class Walk {
 public:
  ModuleDecl module(torch::nn::Module& from, const std::string& path) {
    ModuleDecl decl{.path = path, .type = short_type(from), .params = {}, .children = {}, .origin = &from};
    for (const auto& item : from.named_parameters(/*recurse=*/false)) {
      const std::string name = joined(path, item.key());
      decl.params.push_back(declare(item.value(), name));
    }
    for (const auto& child : from.named_children())
      decl.children.push_back(module(*child.value(), joined(path, child.key())));
    return decl;
  }

  std::vector<FoundParam> found;

 private:
  ParamDecl declare(const at::Tensor& tensor, const std::string& name) {
    const auto [place, fresh] =
        ids_.try_emplace(tensor.unsafeGetTensorImpl(), static_cast<ParamId>(found.size()));
    if (fresh) found.push_back({tensor, {}});
    found[static_cast<size_t>(place->second)].names.push_back(name);
    return {.id = place->second,
            .name = name,
            .shape = tensor.sizes().vec(),
            .type = element_type(tensor.scalar_type()),
            .trainable = tensor.requires_grad()};
  }

  std::map<const c10::TensorImpl*, ParamId> ids_;
};

}  // namespace

WalkedModule walk_module(torch::nn::Module& module) {
  Walk walk;
  ModuleDecl root = walk.module(module, "");
  return {std::move(root), std::move(walk.found)};
}

namespace {

// A Recomputed<Block> is named as the block in it.
std::string type_of(const torch::nn::Module& module) {
  constexpr std::string_view kRecomputed = "fsdp::RecomputedImpl<";
  const std::string& name = module.name();
  if (!name.starts_with(kRecomputed)) return name;
  int depth = 0;
  size_t end = kRecomputed.size();
  for (; end < name.size() && (depth > 0 || (name[end] != ',' && name[end] != '>')); ++end)
    depth += name[end] == '<' ? 1 : name[end] == '>' ? -1 : 0;
  return name.substr(kRecomputed.size(), end - kRecomputed.size());
}

}  // namespace

std::string short_type(const torch::nn::Module& module) {
  const std::string name = type_of(module);
  const size_t templates = name.find('<');
  const size_t colon = name.rfind("::", templates);
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

namespace {

// Tied by set_data(), as two tensors over one memory: after sharding they would be independent.
void check_overlap(const FoundParam& a, const FoundParam& b) {
  if (!a.tensor.storage().is_alias_of(b.tensor.storage())) return;
  const int64_t from = a.tensor.storage_offset(), to = b.tensor.storage_offset();
  TORCH_CHECK(
      from + a.tensor.numel() <= to || to + b.tensor.numel() <= from, "fsdp: parameters '", a.names.front(),
      "' and '", b.names.front(),
      "' share memory but are two tensors; tie them by assignment, so that both names mean one tensor");
}

}  // namespace

void check_unshared(const WalkedModule& walked) {
  std::map<const c10::StorageImpl*, std::vector<const FoundParam*>> by_storage;
  for (const auto& param : walked.params) {
    auto& same = by_storage[param.tensor.storage().unsafeGetStorageImpl()];
    if (tag_of(param.tensor) == nullptr)
      for (const FoundParam* other : same) check_overlap(*other, param);
    same.push_back(&param);
  }
  std::map<const c10::StorageImpl*, size_t> owners;
  for (const auto& param : walked.params) ++owners[param.tensor.storage().unsafeGetStorageImpl()];
  for (const auto& param : walked.params) {
    if (tag_of(param.tensor) != nullptr) continue;
    const auto uses = static_cast<size_t>(param.tensor.storage().use_count());
    TORCH_CHECK(
        uses <= owners[param.tensor.storage().unsafeGetStorageImpl()], "fsdp: parameter '",
        param.names.front(),
        "' shares its memory with a tensor that is no parameter of the module (a cached view, a detached "
        "copy, an optimizer's buffer, the autograd graph of a loss?); that tensor would see old values. Drop "
        "it before fully_shard(); of a loss, call backward() first or let it go.");
  }
}

}  // namespace fsdp::detail
