// write_script FILE: a small language model as TorchScript, for models_test.py. Tokens [batch, time] in,
// logits out.
#include <torch/script.h>
#include <torch/torch.h>

namespace {

constexpr int64_t kVocabulary = 257, kWidth = 32;

torch::jit::Module make_block() {
  torch::jit::Module block("Block");
  block.register_parameter("up", torch::randn({kWidth, 4 * kWidth}) / 6, /*is_buffer=*/false);
  block.register_parameter("down", torch::randn({4 * kWidth, kWidth}) / 12, /*is_buffer=*/false);
  block.define(R"(
    def forward(self, x):
        return x + torch.matmul(torch.gelu(torch.matmul(x, self.up)), self.down)
  )");
  return block;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  torch::manual_seed(1);
  torch::jit::Module net("Net");
  net.register_parameter("embedding", torch::randn({kVocabulary, kWidth}) / 6, /*is_buffer=*/false);
  net.register_module("first", make_block());
  net.register_module("second", make_block());
  net.register_parameter("head", torch::randn({kWidth, kVocabulary}) / 6, /*is_buffer=*/false);
  net.define(R"(
    def forward(self, tokens):
        x = torch.embedding(self.embedding, tokens)
        return torch.matmul(self.second.forward(self.first.forward(x)), self.head)
  )");
  for (auto parameter : net.parameters()) parameter.set_requires_grad(true);
  net.save(argv[1]);
  return 0;
}
