#include <fsdp/script.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include "runtime/engine.h"

namespace fsdp {

namespace detail {

namespace {

// "BasicBlock" of "__torch__.models.resnet.BasicBlock" and of "__torch__.___torch_mangle_3.BasicBlock".
std::string class_name(const torch::jit::Module& script) {
  const auto name = script.type()->name();
  return name ? name->name() : "Script";
}

class ScriptMirror : public torch::nn::Module {
 public:
  explicit ScriptMirror(torch::jit::Module script) : Module(class_name(script)), script_(std::move(script)) {
    Module::train(script_.is_training());  // before it has children: each has a mode of its own
    for (const auto& item : script_.named_parameters(/*recurse=*/false))
      register_parameter(item.name, item.value, item.value.requires_grad());
    for (const auto& item : script_.named_buffers(/*recurse=*/false)) register_buffer(item.name, item.value);
    for (const auto& item : script_.named_children())
      register_module(item.name, std::make_shared<ScriptMirror>(item.value));
  }

  void train(bool on) override {
    Module::train(on);
    if (script_.hasattr("training")) script_.setattr("training", on);
  }

 private:
  torch::jit::Module script_;
};

}  // namespace

std::shared_ptr<torch::nn::Module> mirror_script(const torch::jit::Module& script) {
  return std::make_shared<ScriptMirror>(script);
}

c10::IValue cast_inside(const InputCast& cast, const c10::IValue& value) {
  if (value.isTensor()) return cast_tensor(cast, value.toTensor());
  bool any = false;
  value.visit([&](const c10::IValue& inner) {
    any = any || (inner.isTensor() && changes(cast, inner.toTensor()));
    return any;
  });
  if (!any) return value;
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const auto& element : value.toTupleRef().elements()) elements.push_back(cast_inside(cast, element));
    return c10::ivalue::Tuple::createNamed(std::move(elements), value.toTupleRef().type());
  }
  if (value.isList()) {
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, cast_inside(cast, list.get(i)));
    return list;
  }
  if (value.isGenericDict()) {
    auto dict = value.toGenericDict().copy();
    for (const auto& item : dict) item.setValue(cast_inside(cast, item.value()));
    return dict;
  }
  return value;
}

// Note [Scripts as they are written]
//
// The interpreter runs a script operator by operator, so that the observer sees each one. Compiled, operators
// would be fused into larger ones that hide which parameters they read. Functions started by fork() would run
// on threads, and ranks would gather in different orders: here they run where they are started. The
// interpreter reports an error by its text only; errors of this library are thrown with their own type.
c10::IValue run_script(Engine& engine, const torch::jit::Module& script, const std::string& method,
                       std::vector<c10::IValue> inputs) {
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  const Engine& model = current(engine.shared_from_this());
  const std::exception_ptr before = model.last_error();
  try {
    const auto done =
        script.get_method(method).run_async(std::move(inputs), {}, [](const auto& task) { task(); });
    done->waitAndThrow();
    return done->value();
  } catch (const std::exception&) {
    if (model.last_error() != before) std::rethrow_exception(model.last_error());
    throw;
  }
}

}  // namespace detail

Sharded<torch::jit::Module> fully_shard(const World& world, const torch::jit::Module& module,
                                        const ShardOptions& options) {
  const auto mirror = detail::mirror_script(module);
  auto engine = detail::shard_module(world, *mirror, options);
  return Sharded<torch::jit::Module>(std::move(engine), module);
}

}  // namespace fsdp
