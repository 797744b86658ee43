#include "behaviour/checkpoint_net.h"

#include "checkpoint/tensor_files.h"
#include "files/run_folder.h"

namespace fsdp::testing {

MixedNet::MixedNet(uint64_t seed) {
  const SeededHere seeded(seed);
  embedding = register_module("embedding", torch::nn::Embedding(37, 10));
  conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3)));
  conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  up = register_module("up", torch::nn::Linear(10, 23));
  down = register_module("down", torch::nn::Linear(23, 10));
  frozen = register_module("frozen", torch::nn::Linear(10, 10));
  for (auto& param : frozen->parameters()) param.set_requires_grad(false);
  head = register_parameter("head", embedding->weight);
  own = register_module("own", torch::nn::Linear(3, 2));
  row = register_parameter("row", torch::randn({1, 777}));
  scale = register_parameter("scale", torch::tensor(1.5));
  nothing = register_parameter("nothing", torch::zeros({0, 4}));
  half = register_parameter("half", torch::randn({7, 5}).to(at::kBFloat16), /*requires_grad=*/false);
  wide = register_parameter("wide", torch::randn({9, 11}, at::kDouble));
  c64 = register_parameter("c64", torch::randn({5, 7}, at::kComplexFloat), false);
  c128 = register_parameter("c128", torch::randn({3, 5}, at::kComplexDouble), false);
  counter = register_buffer("counter", torch::randint(1000, {}, at::kLong));
  mask = register_buffer("mask", torch::randint(2, {4, 3}).to(at::kBool));
  mean = register_buffer("mean", torch::randn({6, 4}).t());
}

std::vector<at::Tensor> MixedNet::batch(int64_t index) const {
  auto gen = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(index));
  return {torch::randint(37, {4}, gen), torch::randn({4, 3, 5, 5}, gen), torch::randint(37, {4}, gen)};
}

at::Tensor MixedNet::forward(const std::vector<at::Tensor>& batch) {
  at::Tensor x = embedding(batch[0]);
  x = x + conv(batch[1]).mean({1, 2, 3}).unsqueeze(1) * scale;
  x = x + down(torch::tanh(up(x))) + frozen(x);
  x = x * (1 + row.mean()) + (row * row).sum() * 1e-3 + wide.square().mean().to(at::kFloat);
  return torch::nn::functional::cross_entropy(torch::linear(x, head), batch[2]);
}

ShardOptions mixed_options() {
  ShardOptions options{.wrap = by_type<torch::nn::LinearImpl, torch::nn::EmbeddingImpl>(),
                       .ignored = {"own"}};
  options.comm.timeout = std::chrono::seconds(20);
  return options;
}

std::map<std::string, at::Tensor> whole_state(Sharded<MixedNet>& model) {
  const auto whole = model.full_params();
  std::map<std::string, at::Tensor> state;
  for (const auto& item : model.module().named_parameters())
    state[item.key()] = item.value().detach().clone();
  for (const auto& item : model.module().named_buffers()) state[item.key()] = item.value().detach().clone();
  return state;
}

std::map<std::string, at::Tensor> read_checkpoint(const std::string& folder) {
  detail::FileOps& files = detail::posix_files();
  const detail::OpenCheckpoint open = detail::find_checkpoint(files, folder);
  const detail::Manifest manifest = detail::Manifest::parse(open.manifest_text, open.folder);
  detail::TensorReader reader(files, open.folder, manifest);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, saved] : manifest.tensors) {
    const at::Tensor whole = torch::empty(saved.shape, detail::dtype_of(saved.dtype).value());
    reader.fill({detail::make_whole(name, whole)});
    tensors[name] = whole;
  }
  return tensors;
}

std::string difference(const std::map<std::string, at::Tensor>& got,
                       const std::map<std::string, at::Tensor>& wanted, const std::string& but) {
  const auto counts = [&](const std::string& name) { return !name.starts_with(but); };
  for (const auto& [name, tensor] : wanted) {
    if (!counts(name)) continue;
    const auto found = got.find(name);
    if (found == got.end()) return name + " is missing";
    const at::Tensor& mine = found->second;
    if (mine.scalar_type() != tensor.scalar_type() || mine.sizes() != tensor.sizes())
      return name + " has another dtype or shape";
    if (!torch::equal(mine.contiguous().view({-1}).view(at::kByte),
                      tensor.contiguous().view({-1}).view(at::kByte)))
      return name + " differs";
  }
  for (const auto& [name, tensor] : got)
    if (counts(name) && !wanted.contains(name)) return name + " is not expected";
  return "";
}

std::string words_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "not a std::exception";
  }
  return "not refused";
}

}  // namespace fsdp::testing
