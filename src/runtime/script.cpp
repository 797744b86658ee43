#include <fsdp/script.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

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
    for (const auto& item : script_.named_parameters(/*recurse=*/false))
      register_parameter(item.name, item.value, item.value.requires_grad());
    for (const auto& item : script_.named_buffers(/*recurse=*/false)) register_buffer(item.name, item.value);
    for (const auto& item : script_.named_children())
      register_module(item.name, std::make_shared<ScriptMirror>(item.value));
    Module::train(script_.hasattr("training") && script_.is_training());
  }

  void train(bool on) override {
    Module::train(on);
    if (script_.hasattr("training")) script_.train(on);
  }

 private:
  torch::jit::Module script_;
};

}  // namespace

std::shared_ptr<torch::nn::Module> mirror_script(const torch::jit::Module& script) {
  return std::make_shared<ScriptMirror>(script);
}

c10::IValue run_script(torch::jit::Module& script, const std::string& method,
                       std::vector<c10::IValue> inputs) {
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  return script.get_method(method)(std::move(inputs));
}

}  // namespace detail

Sharded<torch::jit::Module> fully_shard(const World& world, const torch::jit::Module& module,
                                        const ShardOptions& options) {
  const auto mirror = detail::mirror_script(module);
  auto engine = detail::shard_module(world, *mirror, options);
  return Sharded<torch::jit::Module>(std::move(engine), module);
}

}  // namespace fsdp
