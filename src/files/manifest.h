// manifest.json: the contents of a checkpoint and their places. Readers trust it, not the files' headers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "files/hash128.h"
#include "files/json.h"
#include "layout/boxes.h"

namespace fsdp::detail {

inline constexpr int kFormatVersion = 2;
inline constexpr int64_t kBlockBytes = int64_t{1} << 20;
inline constexpr const char* kManifestName = "manifest.json";
// Limit of its text. Hashes of 28 TiB of data take as much.
inline constexpr int64_t kMostManifestBytes = int64_t{1} << 30;

// A safetensors file of a checkpoint. Its data is hashed in blocks, so that a rank that reads a part of it
// can check that part.
struct SavedFile {
  std::string name;
  int64_t header_bytes = 0;
  int64_t data_bytes = 0;
  Hash128 header;
  std::vector<Hash128> blocks;  // of kBlockBytes each, the last one shorter

  bool operator==(const SavedFile&) const = default;
};

struct SavedBox {
  int32_t file = 0;    // index into the manifest's files
  int64_t offset = 0;  // in bytes behind the file's header
  Box box;

  bool operator==(const SavedBox&) const = default;
};

// Note [Saved tensors]
// A tensor is cut into boxes that follow each other: in memory order each is a contiguous part of its
// elements, and together they are all elements, each once. Memory order is `order`, the dimensions from
// outermost to innermost; empty: as in the shape (channels-last weights differ). In the file a box is
// row-major in the order of the shape, as every reader of safetensors expects.
struct SavedTensor {
  std::string dtype;           // safetensors' name
  std::vector<int64_t> shape;  // shape of the whole tensor
  std::vector<int64_t> order;
  bool real_pairs = false;  // complex128: the last dimension, of extent 2, is the real and imaginary part
  std::vector<SavedBox> boxes;

  bool operator==(const SavedTensor&) const = default;
};

struct Manifest {
  std::string id;  // id of this save, which no other save has
  int64_t step = 0;
  int world = 1;       // number of ranks that saved it
  std::string writer;  // "fsdp.cpp 0.1.0"
  std::vector<SavedFile> files;
  std::map<std::string, SavedTensor> tensors;
  std::map<std::string, std::string> aliases;  // another name of a tied parameter -> the name in `tensors`
  Json run = Json::object();  // all that is no tensor: options of optimizers, positions, values of the user

  // Made from files of other programs: no hashes, and buffers may be missing. Never written.
  bool foreign = false;

  bool operator==(const Manifest&) const = default;

  // The whole file, which ends with a hash of the rest. Throws CheckpointError for strings that are not
  // UTF-8, and if it would be larger than parse() accepts.
  std::string to_text() const;
  // Throws CheckpointError, which begins with `where`, unless all of it is sound: the hash, the version,
  // every name and number, and that the boxes of each tensor cover it.
  static Manifest parse(std::string_view text, const std::string& where);

  // True for a parameter or buffer. The other tensors of a run lie in files of their own: Note [Files of a
  // rank]. In files of other programs, moments have names that ours have, too.
  bool is_of_model(const std::string& name, const SavedTensor& tensor) const;

  // True if it belongs to another model of the run: Note [Parts of a run].
  bool is_of_part(const std::string& name) const;

  // part() is one rank's share, which it sends to rank 0; add_part() puts the shares together. They throw
  // CheckpointError if ranks do not fit, check() if a tensor is not covered.
  Json part() const;
  void add_part(const Json& part, const std::string& where);
  void check(const std::string& where) const;
};

// True if `name` can be a file of a checkpoint: a plain name, which leads out of no folder.
bool is_plain_name(std::string_view name);

}  // namespace fsdp::detail
