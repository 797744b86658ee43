// Files of tokens, memory-mapped: llm.c's, recognised by their header, and nanoGPT's, which have none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/data/mapped_file.h"
#include "trainer/data/token_source.h"

namespace fsdp::data {

enum class TokenType : uint8_t { from_header, uint16, uint32 };
// "from_header", "uint16", "uint32".
const char* to_string(TokenType type);

// Note [Token files]
// llm.c's files begin with 256 little-endian int32 words: magic, version, number of tokens, zeros. Magic
// 20240520 with version 1 means uint16 tokens, 20240801 with version 7 uint32. nanoGPT's files are the tokens
// alone; their type is not in the file. `fsdp data prepare` writes llm.c's format and uses two words that
// llm.c leaves zero. Word 3 is 1 if some tokens do not count in the loss: FILE.mask then has one byte per
// token, 1 where it counts, and a file whose mask is missing is refused. Word 4 has the upper 32 bits of the
// number of tokens. llm.c itself reads such files as long as they have less than 2^31 tokens, and ignores the
// mask.
inline constexpr int32_t kMagicUint16 = 20240520, kVersionUint16 = 1;
inline constexpr int32_t kMagicUint32 = 20240801, kVersionUint32 = 7;
inline constexpr size_t kHeaderWords = 256;

class TokenFile final : public TokenSource {
 public:
  // `type`: that of a file without a header; a header that names another type is a DataError, as is a file
  // without a header for TokenType::from_header, and every size that does not fit. `vocab_size`: read()
  // refuses tokens that are not below it, with file:offset; 0: any token. Throws IoError where it cannot be
  // opened.
  static std::shared_ptr<const TokenFile> open(const std::string& path,
                                               TokenType type = TokenType::from_header,
                                               int64_t vocab_size = 0);

  const std::string& path() const { return file_.path(); }
  TokenType type() const { return type_; }  // never from_header
  int64_t size() const override { return size_; }
  void read(int64_t begin, std::span<int64_t> out) const override;
  bool has_mask() const override { return mask_ != nullptr; }
  void read_mask(int64_t begin, std::span<uint8_t> out) const override;

 private:
  TokenFile(const std::string& path, TokenType type, int64_t vocab_size);
  void read_header(TokenType expected);
  void measure_raw(TokenType type);
  void open_mask();
  template <class Word>
  void copy(int64_t begin, std::span<int64_t> out) const;

  MappedFile file_;
  std::unique_ptr<const MappedFile> mask_;
  TokenType type_ = TokenType::uint16;
  int64_t vocab_size_;
  size_t first_byte_ = 0;  // offset of token 0
  int64_t size_ = 0;
};

// True if the file begins with a magic number of llm.c's.
bool is_token_file(const MappedFile& file);

}  // namespace fsdp::data
