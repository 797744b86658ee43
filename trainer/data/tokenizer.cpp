#include "trainer/data/tokenizer.h"

#include <filesystem>

#include "trainer/data/error.h"
#include "trainer/data/hf_tokenizer.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/tiktoken_file.h"

namespace fsdp::data {

namespace {

namespace fs = std::filesystem;

// The two files of GPT-2's tokenizer go by these names.
struct PairNames {
  const char* vocab;
  const char* merges;
};
constexpr PairNames kPairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};

std::unique_ptr<Tokenizer> open_folder(const fs::path& folder) {
  if (file_exists((folder / "tokenizer.json").string()))
    return open_hf_tokenizer((folder / "tokenizer.json").string());
  for (const PairNames& names : kPairs)
    if (file_exists((folder / names.vocab).string()) && file_exists((folder / names.merges).string()))
      return open_gpt2_tokenizer((folder / names.vocab).string(), (folder / names.merges).string());
  throw DataError(folder.string() + ": the folder has no tokenizer.json, and no vocab.json with merges.txt" +
                  (file_exists((folder / "tokenizer.model").string())
                       ? ". If its tokenizer.model is a file of tiktoken's ranks, give its path"
                       : ""));
}

// One file of GPT-2's pair stands for both.
std::unique_ptr<Tokenizer> open_pair(const fs::path& path) {
  for (const PairNames& names : kPairs) {
    if (path.filename() != names.vocab && path.filename() != names.merges) continue;
    const fs::path folder = path.parent_path();
    for (const char* name : {names.vocab, names.merges})
      if (!file_exists((folder / name).string()))
        throw DataError(path.string() + ": " + (folder / name).string() +
                        " is missing; they are a tokenizer together");
    return open_gpt2_tokenizer((folder / names.vocab).string(), (folder / names.merges).string());
  }
  return nullptr;
}

bool begins_like_json(const std::string& path) {
  const MappedFile file(path);
  const size_t first = file.text().find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && file.text()[first] == '{';
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path_or_name) {
  if (path_or_name == "byte") return byte_tokenizer();
  const fs::path path(path_or_name);
  std::error_code code;
  if (fs::is_directory(path, code)) return open_folder(path);
  if (!file_exists(path_or_name))
    throw DataError(
        "there is no tokenizer '" + path_or_name +
        "': 'byte' is expected, or the path of a tokenizer.json, of a file of tiktoken's ranks, or of a "
        "folder with tokenizer.json or with vocab.json and merges.txt");
  if (auto pair = open_pair(path)) return pair;
  return begins_like_json(path_or_name) ? open_hf_tokenizer(path_or_name) : open_tiktoken_file(path_or_name);
}

}  // namespace fsdp::data
