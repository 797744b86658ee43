#include "trainer/data/tiktoken_file.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "trainer/data/base64.h"
#include "trainer/data/bpe_tokenizer.h"
#include "trainer/data/error.h"
#include "trainer/data/json_file.h"
#include "trainer/data/mapped_file.h"

namespace fsdp::data {

namespace {

struct Encoding {
  size_t ranks = 0;
  const char* name = "";
  const char* pattern = "";
  std::vector<std::pair<const char*, int32_t>> special = {};  // the first is the end of text
};

const std::vector<Encoding>& encodings() {
  static const std::vector<Encoding> kAll{
      {50256, "r50k", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
      {50280, "p50k", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
      {100256,
       "cl100k",
       kCl100kPattern,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {128000,
       "Llama 3",
       kLlama3Pattern,
       {{"<|end_of_text|>", 128001},
        {"<|begin_of_text|>", 128000},
        {"<|start_header_id|>", 128006},
        {"<|end_header_id|>", 128007},
        {"<|eot_id|>", 128009}}},
      {199998, "o200k", kO200kPattern, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
  };
  return kAll;
}

// `size`: one more than the largest rank.
Encoding encoding_of(size_t ranks, size_t size) {
  for (const Encoding& one : encodings())
    if (one.ranks == ranks) return one;
  const char* pattern = ranks < 100256 ? kGpt2Pattern : ranks < 199998 ? kCl100kPattern : kO200kPattern;
  return {ranks, "own", pattern, {{"<|endoftext|>", static_cast<int32_t>(size)}}};
}

class RanksFile {
 public:
  explicit RanksFile(const std::string& path);

  std::vector<std::string> bytes;  // [largest rank + 1]; empty: no token has this rank
  size_t count = 0;
  std::vector<Merge> merges() const;

 private:
  void add_line(std::string_view line, const std::string& where);
};

RanksFile::RanksFile(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) add_line(line, path + ":" + std::to_string(number));
  }
  if (count == 0) throw DataError(path + ": the file is empty; a tokenizer is expected");
}

void RanksFile::add_line(std::string_view line, const std::string& where) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::optional<std::string> token = decode_base64(line.substr(0, space));
  const char* const begin = line.data() + std::min(space + 1, line.size());
  const char* const end = line.data() + line.size();
  int32_t rank = -1;
  const std::from_chars_result read = std::from_chars(begin, end, rank);
  if (!token || token->empty() || read.ec != std::errc() || read.ptr != end || rank < 0 ||
      rank >= kMostTokens)
    throw DataError(
        where +
        ": a token in base64, a space and its rank are expected, as in tiktoken's files. Other "
        "tokenizers are a tokenizer.json, or vocab.json with merges.txt; SentencePiece is not supported");
  const auto index = static_cast<size_t>(rank);
  if (bytes.size() <= index) bytes.resize(index + 1);
  if (!bytes[index].empty()) throw DataError(where + ": the rank " + std::to_string(rank) + " comes twice");
  bytes[index] = *token;
  ++count;
}

// tiktoken merges the neighbours whose bytes together have the lowest rank: each way to cut a token is a
// merge.
std::vector<Merge> RanksFile::merges() const {
  std::unordered_map<std::string_view, int32_t> ranks;
  for (size_t rank = 0; rank < bytes.size(); ++rank)
    if (!bytes[rank].empty()) ranks.emplace(bytes[rank], static_cast<int32_t>(rank));
  std::vector<Merge> all;
  for (const auto& [token, rank] : ranks)
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut)), right = ranks.find(token.substr(cut));
      if (left != ranks.end() && right != ranks.end())
        all.push_back({.left = left->second, .right = right->second, .rank = rank, .result = rank});
    }
  return all;
}

void add_special(const Encoding& encoding, const std::string& path, BpeVocabulary& vocabulary) {
  for (const auto& [text, token] : encoding.special) {
    const auto index = static_cast<size_t>(token);
    if (vocabulary.bytes.size() <= index) vocabulary.bytes.resize(index + 1);
    if (!vocabulary.bytes[index].empty())
      throw DataError(path + ": rank " + std::to_string(token) + " is a token of the text, but in " +
                      encoding.name + ", which has " + std::to_string(encoding.ranks) + " ranks, it is " +
                      text);
    vocabulary.bytes[index] = text;
    vocabulary.added.push_back({.text = text, .token = token});
  }
  vocabulary.end_of_text = encoding.special.front().second;
}

}  // namespace

std::unique_ptr<Tokenizer> open_tiktoken_file(const std::string& path) {
  RanksFile file(path);
  const Encoding encoding = encoding_of(file.count, file.bytes.size());
  BpeVocabulary vocabulary;
  vocabulary.name = std::string("tiktoken ") + encoding.name + " (" + path + ")";
  vocabulary.merges = file.merges();
  vocabulary.whole_pieces = true;
  vocabulary.bytes = std::move(file.bytes);
  vocabulary.steps = {{.pattern = std::make_shared<SplitPattern>(encoding.pattern, PatternSyntax::rust)}};
  add_special(encoding, path, vocabulary);
  return std::make_unique<BpeTokenizer>(std::move(vocabulary), path);
}

}  // namespace fsdp::data
