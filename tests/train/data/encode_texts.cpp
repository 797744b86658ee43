// encode_texts TOKENIZER as_text|as_tokens [space]: encodes texts for tokenizer_peer.py.
//
// Reads JSON strings from stdin, one per line, and writes a JSON array of tokens for each. Exits 1 if
// decoding does not give the text back; with `space`, spaces that were added are ignored.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/data/tokenizer.h"

namespace {

std::string without_spaces(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace fsdp::data;
  if (argc < 3) return 2;
  try {
    const auto tokenizer = open_tokenizer(argv[1]);
    const SpecialTokens specials =
        std::string(argv[2]) == "as_tokens" ? SpecialTokens::as_tokens : SpecialTokens::as_text;
    for (std::string line; std::getline(std::cin, line);) {
      const auto text = nlohmann::json::parse(line).get<std::string>();
      const std::vector<int32_t> tokens = tokenizer->encode(text, specials);
      const std::string again = tokenizer->decode(tokens);
      if (argc > 3 ? without_spaces(again) != without_spaces(text) : again != text) {
        std::cerr << "decoded text differs: " << line << "\n";
        return 1;
      }
      std::cout << nlohmann::json(tokens) << "\n";
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
