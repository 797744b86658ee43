// Documents from text files and JSONL, and their tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/token_source.h"
#include "trainer/data/tokenizer.h"

namespace fsdp::data {

// Note [Documents]
// A text file is one document. A line of a .jsonl file is one: an object with "text" (or `text_key`), or with
// "prompt" and "completion", where only the completion and the end-of-text after it count in the loss. Prompt
// and completion are encoded apart. Every document is followed by end-of-text; they are packed, not padded.
// Documents without text are skipped and counted; lines of white space are no documents. A broken line is a
// DataError with file:line, and bytes that are not UTF-8 one with file:offset, unless the tokenizer is the
// byte tokenizer and the file is no JSONL.
//
// Validation takes the last part of every text file, from a new line on, or every n-th example of JSONL
// files.
struct TextOptions {
  std::string text_key = {};       // of JSONL; empty: "text", or "prompt" with "completion"
  double validation_fraction = 0;  // in [0, 1)
  bool jsonl = false;              // every file is JSONL; false: those whose name ends in .jsonl
  bool completion_only = true;     // false: the prompt counts in the loss too
};

struct TextCounts {
  int64_t documents = 0;
  int64_t validation_documents = 0;  // of text files that are divided: counted in both
  int64_t empty_documents = 0;       // skipped
  int64_t bytes = 0;                 // of the files read
};

// Called with bytes read so far and in all.
using TextProgress = std::function<void(int64_t done, int64_t total)>;

// Files in the order given; a folder stands for its .txt, .md and .jsonl files, sorted by path, also of
// folders inside; a pattern with *, ? or [ for the files that match, sorted. Throws DataError for a path that
// leads to no file.
std::vector<std::string> expand_paths(const std::vector<std::string>& paths,
                                      const std::vector<std::string>& suffixes = {".txt", ".md", ".jsonl"});

// Encodes all files into `train`, and a part of them into `validation` where the fraction asks for it (else
// it may be null). Throws DataError, also if nothing is left for training or validation, and IoError.
TextCounts encode_files(const std::vector<std::string>& files, Tokenizer& tokenizer,
                        const TextOptions& options, TokenSink& train, TokenSink* validation,
                        const TextProgress& progress = {});

// One document that is in memory. `where` stands for its file in messages.
TextCounts encode_text(std::string_view text, const std::string& where, Tokenizer& tokenizer,
                       const TextOptions& options, TokenSink& train, TokenSink* validation);

}  // namespace fsdp::data
