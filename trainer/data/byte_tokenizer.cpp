#include <algorithm>

#include "trainer/data/error.h"
#include "trainer/data/tokenizer.h"

namespace fsdp::data {

namespace {

constexpr int32_t kEndOfText = 256;
constexpr std::string_view kEndOfTextName = "<|endoftext|>";
constexpr size_t kBlockBytes = size_t{1} << 16;

class ByteTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;
  void encode(std::string_view text, SpecialTokens specials, const TakeTokens& take) override {
    if (specials == SpecialTokens::as_text) return encode_bytes(text, 0, take);
    size_t done = 0;
    for (size_t at = text.find(kEndOfTextName); at != std::string_view::npos;
         at = text.find(kEndOfTextName, done)) {
      encode_bytes(text.substr(done, at - done), done, take);
      done = at + kEndOfTextName.size();
      take(std::span(&kEndOfText, 1), done);
    }
    encode_bytes(text.substr(done), done, take);
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string bytes;
    for (const int32_t token : tokens) {
      if (token < 0 || token > kEndOfText)
        throw DataError("token " + std::to_string(token) +
                        " is not in the vocabulary of 257 tokens of the byte tokenizer");
      if (token == kEndOfText)
        bytes += kEndOfTextName;
      else
        bytes += static_cast<char>(token);
    }
    return bytes;
  }

  int32_t vocab_size() const override { return kEndOfText + 1; }
  std::optional<int32_t> end_of_text() const override { return kEndOfText; }
  std::string name() const override { return "byte"; }

 private:
  // `before`: length of the text in front of `text`.
  void encode_bytes(std::string_view text, size_t before, const TakeTokens& take) {
    for (size_t at = 0; at < text.size(); at += kBlockBytes) {
      const std::string_view block = text.substr(at, kBlockBytes);
      tokens_.resize(block.size());
      std::transform(block.begin(), block.end(), tokens_.begin(),
                     [](char byte) { return int32_t{static_cast<unsigned char>(byte)}; });
      take(tokens_, before + at + block.size());
    }
  }

  std::vector<int32_t> tokens_;  // of a block
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace fsdp::data
