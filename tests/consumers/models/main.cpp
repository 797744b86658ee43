// A user of the installed models: one step of a small GPT-2 and a small Llama, sharded.
#include <fsdp/fsdp.h>
#include <fsdp/models/gpt2.h>
#include <fsdp/models/llama.h>

#include <cstdio>

template <class Model>
bool trains(const fsdp::World& world, Model net) {
  auto model = fsdp::fully_shard(world, net);
  fsdp::AdamW optimizer(model.parameters(), fsdp::AdamWOptions(1e-2));
  const auto tokens = torch::arange(64).view({4, 16}) % 7;
  float first = 0, last = 0;
  for (int step = 0; step < 10; ++step) {
    auto loss = model(tokens, tokens);
    last = loss.template item<float>();
    if (step == 0) first = last;
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  std::printf("loss %.3f -> %.3f\n", first, last);
  return last < first;
}

int main() {
  return fsdp::run_main([] {
    const auto world = fsdp::init();
    using namespace fsdp::models;
    const bool ok =
        trains(world, GPT2LMHeadModel(GPT2Config{
                          .vocab_size = 8, .n_positions = 16, .n_embd = 16, .n_layer = 2, .n_head = 2})) &&
        trains(world, LlamaForCausalLM(LlamaConfig{.vocab_size = 8,
                                                   .hidden_size = 16,
                                                   .intermediate_size = 32,
                                                   .num_hidden_layers = 2,
                                                   .num_attention_heads = 2,
                                                   .num_key_value_heads = 2,
                                                   .max_position_embeddings = 16}));
    if (!ok) throw std::runtime_error("the loss did not fall");
  });
}
