// The safetensors format: a length, a JSON header, and the bytes of the tensors one after the other.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "files/file_ops.h"

namespace fsdp::detail {

// The same limit as in the safetensors library. 100 MB describe about 400,000 tensors.
inline constexpr int64_t kMostHeaderBytes = 100'000'000;

// Bytes of an element of a dtype by its name in the
// format ("F32", "BF16", ...); 0 for an unknown name.
int64_t dtype_bytes(std::string_view dtype);

// Number of elements of a tensor. Throws CheckpointError, which begins with `where`, if it overflows.
int64_t checked_numel(const std::vector<int64_t>& shape, const std::string& where);

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // in bytes behind the header
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t bytes = 0;  // position of the first data byte
};

// The file up to the data, which begins at a multiple of `align`. Entries follow each other without gaps.
// Throws CheckpointError if the header would be longer than readers accept.
std::string make_safetensors_header(const std::vector<SafetensorsEntry>& tensors,
                                    const std::map<std::string, std::string>& metadata, int64_t align = 8);

// Parses the header of a file of `file_bytes` that begins with `start`. Throws CheckpointError, which begins
// with `where`, unless all of it fits: dtypes are known, shapes fit sizes, tensors fill the file.
SafetensorsHeader parse_safetensors_header(std::string_view start, int64_t file_bytes,
                                           const std::string& where);

// For a file that begins with `start`: says that it is a pickle or an archive of one, with advice. Empty: it
// is neither.
std::string other_format(std::string_view start);

// The error for pickled, zipped and TorchScript files says what they are, with advice.
SafetensorsHeader read_safetensors_header(const OpenFile& file, const std::string& path);

}  // namespace fsdp::detail
