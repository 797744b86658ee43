#include "trainer/generate.h"

#include <fsdp/train.h>
#include <torch/torch.h>

#include <algorithm>
#include <span>

namespace fsdp::train {

namespace {

// The newest `count` tokens, or all.
std::vector<int64_t> newest(const std::vector<int64_t>& tokens, int64_t count) {
  const auto all = static_cast<int64_t>(tokens.size());
  return {tokens.end() - std::min(all, count), tokens.end()};
}

// A text as far as it is written. See Note [Texts longer than the context].
class Text {
 public:
  Text(LanguageModel& model, const std::vector<int64_t>& prompt, int64_t context)
      : model_(model), context_(context), window_(newest(prompt, context)) {
    read_again();
  }

  // The logits of the next token, on the CPU: fp32 [vocab].
  at::Tensor next_logits() {
    const at::Tensor tokens = torch::tensor(unread_, torch::kLong).unsqueeze(0);
    unread_.clear();
    return next_(tokens).select(0, 0).to(at::kCPU, at::kFloat).contiguous();
  }

  void append(int64_t token) {
    window_.push_back(token);
    unread_.push_back(token);
    if (static_cast<int64_t>(window_.size()) <= context_) return;
    window_ = newest(window_, context_ - context_ / 2);
    read_again();
  }

 private:
  void read_again() {
    next_ = model_.start_text(context_);
    unread_ = window_;
  }

  LanguageModel& model_;
  int64_t context_;
  std::vector<int64_t> window_;  // the tokens that the model reads, at most `context_`
  std::vector<int64_t> unread_;  // the last of them, which it has not read
  LanguageModel::NextLogits next_;
};

int64_t draw(TokenSampler& sampler, const at::Tensor& logits, int64_t vocab_size) {
  if (logits.isnan().any().item<bool>() || !logits.isfinite().any().item<bool>())
    throw NumericError("the model's logits are not finite: its weights are damaged, or training diverged");
  const auto all = static_cast<size_t>(logits.numel());
  const size_t most = vocab_size > 0 ? std::min(all, static_cast<size_t>(vocab_size)) : all;
  return sampler.draw(std::span(logits.const_data_ptr<float>(), most));
}

}  // namespace

void generate_text(LanguageModel& model, const std::vector<int64_t>& prompt, const TextOptions& options,
                   const std::function<void(int64_t token)>& take) {
  TORCH_CHECK(!prompt.empty(), "a text needs a prompt of at least one token");
  const torch::NoGradGuard no_grad;
  model.model.eval();
  const auto gathered = model.model.keep_gathered();
  TokenSampler sampler(options.sample);
  Text text(model, prompt, options.context);
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    const int64_t token = draw(sampler, text.next_logits(), options.vocab_size);
    if (token == options.end_of_text) return;
    take(token);
    text.append(token);
  }
}

}  // namespace fsdp::train
