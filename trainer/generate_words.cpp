#include "trainer/generate_words.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "trainer/data/error.h"
#include "trainer/generate_stream.h"

namespace fsdp::train {

namespace {

class Characters final : public Words {
 public:
  explicit Characters(std::unique_ptr<data::Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::vector<int64_t> encode(const std::string& prompt) const override {
    const std::vector<int32_t> tokens = tokenizer_->encode(prompt, data::SpecialTokens::as_tokens);
    if (!tokens.empty()) return {tokens.begin(), tokens.end()};
    if (const auto end = tokenizer_->end_of_text()) return {*end};
    throw data::DataError("--prompt is empty, and the tokenizer (" + tokenizer_->name() +
                          ") has no end of text that a text could begin with: give a prompt");
  }

  std::string next(int64_t token) override {
    const auto narrow = static_cast<int32_t>(token);
    return stream_.push(tokenizer_->decode({&narrow, 1}));
  }

  std::string finish() override { return stream_.finish() + "\n"; }
  std::optional<int64_t> end_of_text() const override { return tokenizer_->end_of_text(); }
  int64_t vocab_size() const override { return tokenizer_->vocab_size(); }

 private:
  std::unique_ptr<data::Tokenizer> tokenizer_;
  CharacterStream stream_;
};

class Ids final : public Words {
 public:
  std::vector<int64_t> encode(const std::string& prompt) const override {
    constexpr const char* kBetween = " ,\n\t";
    std::vector<int64_t> tokens;
    for (size_t at = prompt.find_first_not_of(kBetween); at != std::string::npos;
         at = prompt.find_first_not_of(kBetween, at)) {
      const size_t end = std::min(prompt.find_first_of(kBetween, at), prompt.size());
      tokens.push_back(number(prompt.substr(at, end - at)));
      at = end;
    }
    if (!tokens.empty()) return tokens;
    throw data::DataError("--prompt is empty. " + expectation());
  }

  std::string next(int64_t token) override {
    return (std::exchange(first_, false) ? "" : " ") + std::to_string(token);
  }

  std::string finish() override {
    first_ = true;
    return "\n";
  }

  std::optional<int64_t> end_of_text() const override { return {}; }
  int64_t vocab_size() const override { return 0; }

 private:
  static std::string expectation() {
    return "The tokenizer of this run's data is not known, so a list of token ids is expected, such as "
           "\"464 2068\"";
  }

  static int64_t number(const std::string& word) {
    int64_t token = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || rest != word.data() + word.size() || token < 0)
      throw data::DataError("--prompt: '" + word + "' is no token id. " + expectation());
    return token;
  }

  bool first_ = true;
};

}  // namespace

std::unique_ptr<Words> make_words(std::unique_ptr<data::Tokenizer> tokenizer) {
  if (tokenizer) return std::make_unique<Characters>(std::move(tokenizer));
  return std::make_unique<Ids>();
}

}  // namespace fsdp::train
