// Byte-level BPE tokenizers as Hugging Face writes them, and as OpenAI published GPT-2's.
#pragma once

#include <memory>
#include <string>

#include "trainer/data/tokenizer.h"

namespace fsdp::data {

// tokenizer.json. Supported: the model BPE without dropout, byte_fallback and affixes; no normalizer; the
// pre-tokenizers ByteLevel, Split and Digits, also in a Sequence that ends with ByteLevel; added tokens
// without single_word, lstrip and rstrip. Anything else is a DataError that names it: its tokens would be
// others than those of `tokenizers`. The post-processor is not read, as encode() adds no tokens. End of text
// is eos_token of the tokenizer_config.json beside it, else the added token <|endoftext|>, <|end_of_text|> or
// </s>.
std::unique_ptr<Tokenizer> open_hf_tokenizer(const std::string& path);

// GPT-2's: vocab.json and merges.txt, or encoder.json and vocab.bpe. End of text is <|endoftext|>, if
// it is in the vocabulary.
std::unique_ptr<Tokenizer> open_gpt2_tokenizer(const std::string& vocab_path, const std::string& merges_path);

}  // namespace fsdp::data
