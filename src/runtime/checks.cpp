#include "runtime/checks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>

#include "base/hash.h"

namespace fsdp::detail {

void check_type(const at::Tensor& tensor, const std::string& name) {
  TORCH_CHECK(tensor.layout() == at::kStrided, "fsdp: parameter '", name, "' is ", tensor.layout(),
              "; only dense parameters can be sharded. Put it on the ignored list.");
  constexpr std::array kTypes = {at::kFloat, at::kDouble, at::kBFloat16,     at::kHalf,
                                 at::kLong,  at::kByte,   at::kComplexFloat, at::kComplexDouble};
  TORCH_CHECK(
      std::find(kTypes.begin(), kTypes.end(), tensor.scalar_type()) != kTypes.end(), "fsdp: parameter '",
      name, "' is of type ", tensor.scalar_type(),
      ", which cannot be communicated (fp32, fp64, bf16, fp16, complex, int64 and uint8 can). Put it on the "
      "ignored list.");
}

namespace {

// A hook of the accumulator in which an old graph ends.
struct OldGraph : torch::autograd::FunctionPreHook {
  explicit OldGraph(std::string name) : name_(std::move(name)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& /*grads*/) override {
    TORCH_CHECK(
        false, "fsdp: a backward reached parameter '", name_,
        "' through an autograd graph from before fully_shard(), when its values and memory were others. "
        "Call backward() before fully_shard(), or compute the loss by model(...).");
  }

 private:
  std::string name_;
};

}  // namespace

void refuse_old_graphs(const at::Tensor& tensor, const std::string& name) {
  namespace impl = torch::autograd::impl;
  const auto old = impl::try_get_grad_accumulator(tensor);
  if (!old) return;
  old->add_pre_hook(std::make_unique<OldGraph>(name));
  impl::set_grad_accumulator(tensor, {});
}

namespace {

// A removed hook leaves an empty entry in LibTorch's list.
bool has_hooks(const at::Tensor& leaf) {
  namespace impl = torch::autograd::impl;
  const auto* meta = impl::get_autograd_meta(leaf);
  if (meta == nullptr) return false;
  if (meta->post_acc_grad_hooks_ != nullptr) return true;
  const auto& hooks = meta->cpp_hooks_list_;
  return hooks && std::any_of(hooks->begin(), hooks->end(), [](const auto& hook) { return bool(hook); });
}

// Reads a module's own list of parameters, since parameters() makes a list with names.
struct OpenModule : torch::nn::Module {
  static const auto& params_of(const torch::nn::Module& module) { return module.*(&OpenModule::parameters_); }
};

template <class Fn>
void for_each_registered(const torch::nn::Module& module, const Fn& fn) {
  for (const auto& item : OpenModule::params_of(module)) fn(item.value());
  for (const auto& child : module.children()) for_each_registered(*child, fn);
}

void collect_registered(const torch::nn::Module& module, const std::string& path, RegisteredParams& found) {
  for (const auto& item : OpenModule::params_of(module))
    found.push_back({.name = path + item.key(), .tensor = item.value().unsafeGetTensorImpl()});
  for (const auto& item : module.named_children())
    collect_registered(*item.value(), path + item.key() + ".", found);
}

// The first parameter that is not among `others`; null: there is none.
const RegisteredParam* first_not_in(const RegisteredParams& params, const RegisteredParams& others) {
  const auto found = std::find_if(params.begin(), params.end(), [&](const RegisteredParam& one) {
    return std::none_of(others.begin(), others.end(),
                        [&](const RegisteredParam& other) { return other.tensor == one.tensor; });
  });
  return found == params.end() ? nullptr : &*found;
}

void refuse_changes(const RegisteredParams& now, const RegisteredParams& then) {
  const RegisteredParam* fresh = first_not_in(now, then);
  TORCH_CHECK(fresh == nullptr, "fsdp: parameter '", fresh->name,
              "' was registered after fully_shard(), in a new module or in one that replaced another: it is "
              "not sharded, and model.parameters() does not have it, so nothing would train it. Change the "
              "module before fully_shard(); load or write values in full_params(true).");
  const RegisteredParam* gone = first_not_in(then, now);
  TORCH_CHECK(gone == nullptr, "fsdp: parameter '", gone->name,
              "' is no longer registered in the module, which was changed after fully_shard(): checkpoints "
              "and optimizers still have it. Change the module before fully_shard().");
}

}  // namespace

RegisteredParams registered_params(const torch::nn::Module& module) {
  RegisteredParams found;
  collect_registered(module, "", found);
  return found;
}

// Called on every forward, so it makes names only if something has changed.
void check_tree(const torch::nn::Module& module, const RegisteredParams& known) {
  size_t next = 0;
  bool same = true;
  for_each_registered(module, [&](const at::Tensor& one) {
    same = same && next < known.size() && known[next].tensor == one.unsafeGetTensorImpl();
    ++next;
  });
  if (!same || next != known.size()) refuse_changes(registered_params(module), known);
}

void check_parameter(const UnitParam& param) {
  TORCH_CHECK(!has_hooks(param.slice), "fsdp: a hook on the slice of parameter '", param.names.front(),
              "' in model.parameters(): gradients of the model do not come to slices through autograd, so it "
              "would not be called. Use model.on_gradient(); a hook on the module's parameter sees the "
              "gradient of this rank's batch.");
  const auto* storage = param.tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  TORCH_CHECK(
      storage == param.poison.unsafeGetStorageImpl() ||
          storage == param.region().storage.unsafeGetStorageImpl(),
      "fsdp: parameter '", param.names.front(),
      "' has other memory than fully_shard() gave it; a sharded module must not be moved, converted or "
      "loaded by module->to(), set_data() or assignment. Move and convert it before "
      "fully_shard(); load or write values in full_params(true).");
  TORCH_CHECK(param.slice.storage().is_alias_of(param.region().shard.storage()),
              "fsdp: the slice of parameter '", param.names.front(),
              "' in model.parameters() has other memory than fully_shard() gave it; write values into it "
              "(copy_()) instead of set_data()");
}

bool batches_are_equal(Comm& comm, c10::Device device, const std::vector<at::Tensor>& arguments) {
  constexpr int64_t kLooked = 4096;  // elements per tensor
  uint64_t hash = kHashStart;
  for (const at::Tensor& argument : arguments) {
    if (!argument.defined() || argument.layout() != at::kStrided || argument.is_meta() ||
        argument.is_quantized() || argument.is_nested() || argument.numel() == 0)
      continue;
    const at::Tensor part =
        argument.detach().flatten().narrow(0, 0, std::min(kLooked, argument.numel())).cpu().contiguous();
    hash = hash_bytes(hash, part.const_data_ptr(), part.nbytes());
  }
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  at::Tensor all = at::empty({comm.size()}, options);
  comm.all_gather(all, at::full({1}, static_cast<int64_t>(hash), options), "first batch").wait();
  return all.eq(static_cast<int64_t>(hash)).all().item<bool>();
}

}  // namespace fsdp::detail
