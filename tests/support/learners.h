// Small models that know their own loss and data, for tests that train them sharded and unsharded.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fsdp::testing {

// Seeds the default generator, and keeps it from the other ranks of the process while a model is made.
class SeededHere {
 public:
  explicit SeededHere(uint64_t seed) : lock_(generator()) { torch::manual_seed(seed); }

 private:
  static std::recursive_mutex& generator() {  // a model may be made inside the making of another
    static std::recursive_mutex mutex;
    return mutex;
  }
  std::lock_guard<std::recursive_mutex> lock_;
};

// A model whose forward gives the loss of a batch.
struct Learner : torch::nn::Module {
  // Batch number `index`, the same for whoever asks.
  virtual std::vector<torch::Tensor> batch(int64_t index) const = 0;
  std::vector<torch::Tensor> batch_on(int64_t index, torch::Device device,
                                      torch::ScalarType type = torch::kFloat) const;
  virtual int64_t batch_dim() const { return 0; }
  virtual torch::Tensor forward(const std::vector<torch::Tensor>& batch) = 0;
};

struct LearnerCase {
  std::string name;
  std::function<std::shared_ptr<Learner>()> make;  // the same weights every time
};

// mlp, convnet, lstm, gpt2, gpt2_untied, llama, llama_tied, frozen
const std::vector<LearnerCase>& learners();
std::shared_ptr<Learner> make_learner(const std::string& name);
// A GPT-2 of `blocks` equal blocks.
std::shared_ptr<Learner> make_gpt2(int64_t blocks, int64_t width, bool tied = true);

}  // namespace fsdp::testing
