// Files of tiktoken's ranks, such as cl100k_base.tiktoken.
#pragma once

#include <memory>
#include <string>

#include "trainer/data/tokenizer.h"

namespace fsdp::data {

// A line of the file is a token in base64, a space and its rank, which is its number too. Neither the pattern
// that splits a text nor the special tokens are in the file. They follow from the number of ranks:
//
//   50,256   r50k (GPT-2)   <|endoftext|> is 50256
//   50,280   p50k           <|endoftext|> is 50256
//   100,256  cl100k         <|endoftext|> is 100257
//   128,000  Llama 3        <|end_of_text|> is 128001
//   199,998  o200k          <|endoftext|> is 199999
//
// For any other number <|endoftext|> is the token after the largest, and the pattern is that of r50k for
// fewer than 100,256 ranks, of cl100k for fewer than 199,998, else of o200k. Throws DataError with file:line,
// and IoError.
std::unique_ptr<Tokenizer> open_tiktoken_file(const std::string& path);

}  // namespace fsdp::data
