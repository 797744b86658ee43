// run_model IN OUT: one forward and backward of a language model, for hf_parity.py.
//
// IN is a dict saved by torch.save: model ("gpt2" or "llama"), config, weights by name, ids, targets. OUT
// becomes a dict for torch.load: logits, loss, and grads by name.
#include <torch/torch.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "models/gpt2.h"
#include "models/llama.h"

namespace {

using namespace fsdp::models;  // NOLINT
using Dict = c10::impl::GenericDict;
using Tensors = c10::Dict<std::string, torch::Tensor>;

GPT2Config gpt2_config(const Dict& config) {
  return {.vocab_size = config.at("vocab_size").toInt(),
          .n_positions = config.at("n_positions").toInt(),
          .n_embd = config.at("n_embd").toInt(),
          .n_layer = config.at("n_layer").toInt(),
          .n_head = config.at("n_head").toInt(),
          .layer_norm_epsilon = config.at("layer_norm_epsilon").toDouble(),
          .tie_word_embeddings = config.at("tie_word_embeddings").toBool()};
}

LlamaConfig llama_config(const Dict& config) {
  return {.vocab_size = config.at("vocab_size").toInt(),
          .hidden_size = config.at("hidden_size").toInt(),
          .intermediate_size = config.at("intermediate_size").toInt(),
          .num_hidden_layers = config.at("num_hidden_layers").toInt(),
          .num_attention_heads = config.at("num_attention_heads").toInt(),
          .num_key_value_heads = config.at("num_key_value_heads").toInt(),
          .max_position_embeddings = config.at("max_position_embeddings").toInt(),
          .rms_norm_eps = config.at("rms_norm_eps").toDouble(),
          .rope_theta = config.at("rope_theta").toDouble(),
          .tie_word_embeddings = config.at("tie_word_embeddings").toBool()};
}

template <class M>
Dict run(M model, const Dict& in) {
  auto parameters = model->named_parameters();
  const auto weights = in.at("weights").toGenericDict();
  TORCH_CHECK(weights.size() == parameters.size(), weights.size(), " weights for ", parameters.size(),
              " parameters");
  {
    torch::NoGradGuard no_grad;
    for (auto& item : parameters) {
      const auto weight = weights.at(item.key()).toTensor();
      TORCH_CHECK(weight.sizes() == item.value().sizes(), item.key(), ": ", weight.sizes(), " and ",
                  item.value().sizes());
      item.value().copy_(weight);
    }
  }
  const auto ids = in.at("ids").toTensor();
  const auto loss = model(ids, in.at("targets").toTensor());
  loss.backward();
  Tensors grads;
  for (const auto& item : parameters) grads.insert(item.key(), item.value().grad());

  Dict out(c10::StringType::get(), c10::AnyType::get());
  out.insert("logits", model(ids).detach());
  out.insert("loss", loss.detach());
  out.insert("grads", grads);
  return out;
}

std::vector<char> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const char* path, const std::vector<char>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  TORCH_CHECK(file.good(), "cannot write ", path);
}

}  // namespace

int main(int argc, char** argv) try {
  TORCH_CHECK(argc == 3, "usage: run_model IN OUT");
  const auto in = torch::pickle_load(read(argv[1])).toGenericDict();
  const auto config = in.at("config").toGenericDict();
  const auto out = in.at("model").toStringRef() == "gpt2" ? run(GPT2LMHeadModel(gpt2_config(config)), in)
                                                          : run(LlamaForCausalLM(llama_config(config)), in);
  write(argv[2], torch::pickle_save(out));
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
