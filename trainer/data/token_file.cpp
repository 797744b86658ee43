#include "trainer/data/token_file.h"

#include <bit>
#include <cstring>
#include <limits>

#include "trainer/data/error.h"

static_assert(std::endian::native == std::endian::little, "token files are read as they lie on the disk");

namespace fsdp::data {

namespace {

constexpr size_t kHeaderBytes = kHeaderWords * sizeof(int32_t);

size_t width_of(TokenType type) { return type == TokenType::uint32 ? 4 : 2; }

int32_t header_word(const MappedFile& file, size_t index) {
  int32_t word = 0;
  std::memcpy(&word, file.bytes().data() + index * sizeof word, sizeof word);
  return word;
}

[[noreturn]] void refuse(const MappedFile& file, size_t offset, const std::string& why) {
  throw DataError(file.path() + ":" + std::to_string(offset) + ": " + why);
}

std::string bytes_text(size_t bytes) { return std::to_string(bytes) + " bytes"; }

constexpr const char* kRemake = ". The file is damaged or was cut off: copy or prepare it again";

}  // namespace

const char* to_string(TokenType type) {
  return type == TokenType::uint16 ? "uint16" : type == TokenType::uint32 ? "uint32" : "from_header";
}

bool is_token_file(const MappedFile& file) {
  if (file.size() < sizeof(int32_t)) return false;
  const int32_t magic = header_word(file, 0);
  return magic == kMagicUint16 || magic == kMagicUint32;
}

std::shared_ptr<const TokenFile> TokenFile::open(const std::string& path, TokenType type,
                                                 int64_t vocab_size) {
  return std::shared_ptr<const TokenFile>(new TokenFile(path, type, vocab_size));
}

TokenFile::TokenFile(const std::string& path, TokenType type, int64_t vocab_size)
    : file_(path), vocab_size_(vocab_size) {
  if (file_.size() == 0) refuse(file_, 0, "the file is empty; a token file is expected");
  if (is_token_file(file_))
    read_header(type);
  else
    measure_raw(type);
}

void TokenFile::read_header(TokenType expected) {
  if (file_.size() < kHeaderBytes)
    refuse(file_, file_.size(),
           "the header ends here; it has " + bytes_text(kHeaderBytes) + " in a whole file" + kRemake);
  const bool wide = header_word(file_, 0) == kMagicUint32;
  type_ = wide ? TokenType::uint32 : TokenType::uint16;
  const int32_t version = header_word(file_, 1), known = wide ? kVersionUint32 : kVersionUint16;
  if (version != known)
    refuse(file_, 4,
           "version " + std::to_string(version) + " of llm.c's format; version " + std::to_string(known) +
               " is expected after this magic number");
  if (expected != TokenType::from_header && expected != type_)
    refuse(file_, 0,
           std::string("the header says ") + to_string(type_) + " tokens, but token_type is " +
               to_string(expected) + ". Leave token_type out: files with a header need none");
  const auto low = static_cast<uint32_t>(header_word(file_, 2)),
             high = static_cast<uint32_t>(header_word(file_, 4));
  const uint64_t count = uint64_t{high} << 32 | low;
  const size_t data_bytes = file_.size() - kHeaderBytes;
  if (count > std::numeric_limits<size_t>::max() / 8 || count * width_of(type_) != data_bytes)
    refuse(file_, 8,
           "the header says " + std::to_string(count) + " tokens of " + bytes_text(width_of(type_)) +
               ", but " + bytes_text(data_bytes) + " follow the header" + kRemake);
  first_byte_ = kHeaderBytes;
  size_ = static_cast<int64_t>(count);
  if (header_word(file_, 3) == 1) open_mask();
}

void TokenFile::measure_raw(TokenType type) {
  if (type == TokenType::from_header)
    refuse(file_, 0,
           "no header of llm.c's is here: the magic number " + std::to_string(kMagicUint16) + " or " +
               std::to_string(kMagicUint32) +
               " is expected. For a file of tokens alone, as nanoGPT writes them, set token_type to uint16 "
               "or uint32 (--type of `fsdp data inspect`). A text file is prepared with `fsdp data prepare`");
  type_ = type;
  const size_t width = width_of(type);
  if (file_.size() % width != 0)
    refuse(file_, file_.size() - file_.size() % width,
           std::string("half a token: the file has ") + bytes_text(file_.size()) + ", tokens of type " +
               to_string(type) + " have " + bytes_text(width) +
               ". The file was cut off, or token_type is not its type");
  size_ = static_cast<int64_t>(file_.size() / width);
}

void TokenFile::open_mask() {
  const std::string path = file_.path() + ".mask";
  if (!file_exists(path))
    refuse(file_, 12,
           "the header says that some tokens do not count in the loss, but " + path +
               ", which says which, is missing. Copy it beside the token file");
  mask_ = std::make_unique<const MappedFile>(path);
  if (mask_->size() != static_cast<size_t>(size_))
    refuse(*mask_, mask_->size(),
           "the mask ends here; " + file_.path() + " has " + std::to_string(size_) +
               " tokens, one byte is expected for each" + kRemake);
}

template <class Word>
void TokenFile::copy(int64_t begin, std::span<int64_t> out) const {
  const std::byte* from = file_.bytes().data() + first_byte_ + static_cast<size_t>(begin) * sizeof(Word);
  Word largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    Word token = 0;
    std::memcpy(&token, from + i * sizeof(Word), sizeof(Word));
    largest = token > largest ? token : largest;
    out[i] = static_cast<int64_t>(token);
  }
  if (vocab_size_ == 0 || int64_t{largest} < vocab_size_) return;
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i] >= vocab_size_)
      refuse(
          file_, first_byte_ + (static_cast<size_t>(begin) + i) * sizeof(Word),
          "token " + std::to_string(out[i]) + " is not in the vocabulary of " + std::to_string(vocab_size_) +
              " tokens. The file is damaged, was made with another tokenizer, or token_type is not its type");
}

void TokenFile::read(int64_t begin, std::span<int64_t> out) const {
  check_range(file_.path(), begin, out.size(), size_);
  file_.check_size();
  if (type_ == TokenType::uint16)
    copy<uint16_t>(begin, out);
  else
    copy<uint32_t>(begin, out);
}

void TokenFile::read_mask(int64_t begin, std::span<uint8_t> out) const {
  if (!mask_) return TokenSource::read_mask(begin, out);
  check_range(file_.path(), begin, out.size(), size_);
  mask_->check_size();
  std::memcpy(out.data(), mask_->bytes().data() + begin, out.size());
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i] > 1)
      refuse(*mask_, static_cast<size_t>(begin) + i,
             "byte " + std::to_string(out[i]) + " in a mask; 0 or 1 is expected" + kRemake);
}

}  // namespace fsdp::data
