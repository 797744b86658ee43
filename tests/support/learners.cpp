#include "support/learners.h"

#include "models/convnet.h"
#include "models/gpt2.h"
#include "models/llama.h"
#include "models/mlp.h"

namespace fsdp::testing {

namespace {

using torch::Tensor;

at::Generator generator(int64_t index) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + index));
}

struct MlpLearner : Learner {
  MlpLearner() { net = register_module("net", models::MLP(std::vector<int64_t>{10, 33, 33, 7})); }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = generator(index);
    return {torch::randn({4, 10}, gen), torch::randn({4, 7}, gen)};
  }
  Tensor forward(const std::vector<Tensor>& batch) override {
    return torch::mse_loss(net(batch[0]), batch[1]);
  }
  models::MLP net{nullptr};
};

struct ConvLearner : Learner {
  ConvLearner() {
    net = register_module(
        "net", models::ConvNet(models::ConvNetConfig{.num_classes = 5, .width = 4, .num_blocks = 2}));
  }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = generator(index);
    return {torch::randn({4, 3, 8, 8}, gen), torch::randint(5, {4}, gen)};
  }
  Tensor forward(const std::vector<Tensor>& batch) override {
    return torch::cross_entropy_loss(net(batch[0]), batch[1]);
  }
  models::ConvNet net{nullptr};
};

struct LstmLearner : Learner {
  explicit LstmLearner(int64_t hidden) {
    lstm = register_module(
        "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, hidden).num_layers(2).bidirectional(true)));
    head = register_module("head", torch::nn::Linear(2 * hidden, 3));
  }
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = generator(index);
    return {torch::randn({5, 4, 6}, gen), torch::randn({5, 4, 3}, gen)};
  }
  int64_t batch_dim() const override { return 1; }
  Tensor forward(const std::vector<Tensor>& batch) override {
    return torch::mse_loss(head(std::get<0>(lstm(batch[0]))), batch[1]);
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};

template <class Model>
struct TextLearner : Learner {
  TextLearner(Model model, int64_t vocab) : net(register_module("net", model)), vocab(vocab) {}
  std::vector<Tensor> batch(int64_t index) const override {
    auto gen = generator(index);
    const Tensor tokens = torch::randint(vocab, {2, 9}, gen);
    return {tokens.narrow(1, 0, 8).contiguous(), tokens.narrow(1, 1, 8).contiguous()};
  }
  Tensor forward(const std::vector<Tensor>& batch) override { return net(batch[0], batch[1]); }
  Model net;
  int64_t vocab;
};

constexpr int64_t kVocab = 61;

std::shared_ptr<Learner> make_llama(bool tied) {
  const models::LlamaConfig config{.vocab_size = kVocab,
                                   .hidden_size = 32,
                                   .intermediate_size = 48,
                                   .num_hidden_layers = 3,
                                   .num_attention_heads = 4,
                                   .num_key_value_heads = 2,
                                   .max_position_embeddings = 16,
                                   .tie_word_embeddings = tied};
  return std::make_shared<TextLearner<models::LlamaForCausalLM>>(models::LlamaForCausalLM(config), kVocab);
}

// Embedding and first block frozen, as in fine-tuning.
std::shared_ptr<Learner> make_frozen() {
  auto learner = make_gpt2(3, 16);
  for (auto& item : learner->named_parameters())
    if (item.key().find("wpe") != std::string::npos || item.key().find("h.0.") != std::string::npos ||
        item.key().find("mlp.c_fc.bias") != std::string::npos)
      item.value().set_requires_grad(false);
  return learner;
}

template <class Fn>
LearnerCase seeded(std::string name, Fn make) {
  return {std::move(name), [make]() -> std::shared_ptr<Learner> {
            const SeededHere seeding(7);
            return make();
          }};
}

}  // namespace

std::vector<Tensor> Learner::batch_on(int64_t index, torch::Device device, torch::ScalarType type) const {
  std::vector<Tensor> tensors = batch(index);
  for (Tensor& tensor : tensors)
    tensor = tensor.is_floating_point() ? tensor.to(device, type) : tensor.to(device);
  return tensors;
}

std::shared_ptr<Learner> make_gpt2(int64_t blocks, int64_t width, bool tied) {
  const models::GPT2Config config{.vocab_size = kVocab,
                                  .n_positions = 16,
                                  .n_embd = width,
                                  .n_layer = blocks,
                                  .n_head = 4,
                                  .tie_word_embeddings = tied};
  return std::make_shared<TextLearner<models::GPT2LMHeadModel>>(models::GPT2LMHeadModel(config), kVocab);
}

const std::vector<LearnerCase>& learners() {
  static const std::vector<LearnerCase> cases = {
      seeded("mlp", [] { return std::make_shared<MlpLearner>(); }),
      seeded("convnet", [] { return std::make_shared<ConvLearner>(); }),
      seeded("lstm", [] { return std::make_shared<LstmLearner>(9); }),
      seeded("gpt2", [] { return make_gpt2(3, 16); }),
      seeded("gpt2_untied", [] { return make_gpt2(3, 16, false); }),
      seeded("llama", [] { return make_llama(false); }),
      seeded("llama_tied", [] { return make_llama(true); }),
      seeded("frozen", make_frozen),
  };
  return cases;
}

std::shared_ptr<Learner> make_learner(const std::string& name) {
  for (const auto& one : learners())
    if (one.name == name) return one.make();
  // Its weights lie as cuDNN wants them: it then reads them through a tensor of its own.
  if (name == "lstm_in_one_piece")
    return seeded(name, [] { return std::make_shared<LstmLearner>(16); }).make();
  TORCH_CHECK(false, "no learner '", name, "'");
}

}  // namespace fsdp::testing
