// Text to tokens and back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

// How encode() reads the name of a special token, such as <|endoftext|>, in a text.
enum class SpecialTokens : uint8_t {
  as_text,    // like any other text: nothing in a corpus can end a document (tiktoken's encode_ordinary)
  as_tokens,  // as the token (tokenizers' encode)
};

// Receives tokens in order, in blocks. `bytes_read`: the length of the text encoded so far.
using TakeTokens = std::function<void(std::span<const int32_t> tokens, size_t bytes_read)>;

// Encoding adds no token of its own: neither begin nor end of text. It keeps a cache, so one thread at a time
// may use an object.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Throws InvalidUtf8 (error.h) for text that is not UTF-8; the byte tokenizer takes any bytes. A text may
  // have any length: its tokens are passed on in blocks.
  virtual void encode(std::string_view text, SpecialTokens specials, const TakeTokens& take) = 0;
  std::vector<int32_t> encode(std::string_view text, SpecialTokens specials = SpecialTokens::as_text);

  // The bytes of the tokens. They may begin or end inside a character: see replace_invalid_utf8(). Throws
  // DataError for a token that the vocabulary does not have.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;

  // One more than the largest token.
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> end_of_text() const = 0;
  // "byte", "GPT-2 (vocab.json, merges.txt)", ...
  virtual std::string name() const = 0;
};

// "byte": the 256 bytes and an end of text (256). Else a path: a folder of Hugging Face's (tokenizer.json,
// else vocab.json with merges.txt), one of these files, or a file of tiktoken's ranks. hf_tokenizer.h and
// tiktoken_file.h say what is supported; anything else is a DataError that names it.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path_or_name);

std::unique_ptr<Tokenizer> byte_tokenizer();

// Offset of the first byte that belongs to no character; npos: all of it is UTF-8.
size_t find_invalid_utf8(std::string_view text);
// U+FFFD in place of each invalid sequence, as Python's bytes.decode(errors="replace").
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace fsdp::data
