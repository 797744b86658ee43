// The safetensors format: a length, a JSON header, and the bytes of the tensors one after the other.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "files/file_ops.h"

namespace fsdp::detail {

// As in the safetensors library, which refuses longer ones too. 100 MB describe some 400,000 tensors.
inline constexpr int64_t kMostHeaderBytes = 100'000'000;

// Bytes of an element of a dtype by its name in the format ("F32", "BF16", ...); 0 for a name that is
// unknown.
int64_t dtype_bytes(std::string_view dtype);

// Elements of a tensor. Throws CheckpointError, which begins with `where`, where they cannot be counted.
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
  int64_t bytes = 0;  // where data begin
};

// The bytes up to where data begin, which is a multiple of `align`. Entries follow each other without gaps.
// Throws CheckpointError where the header would be longer than readers take.
std::string make_safetensors_header(const std::vector<SafetensorsEntry>& tensors,
                                    const std::map<std::string, std::string>& metadata, int64_t align = 8);

// Of a file of `file_bytes` that begins with `start`, its length and header. Throws CheckpointError, which
// begins with `where`, unless all of it fits: dtypes are known, shapes fit sizes, tensors fill the file.
SafetensorsHeader parse_safetensors_header(std::string_view start, int64_t file_bytes,
                                           const std::string& where);

// Of a file that begins with `start`: that it is a pickle or an archive of one, and what to do. Empty: it is
// neither.
std::string other_format(std::string_view start);

// Also says of pickled, zipped and TorchScript files what they are, and what to do.
SafetensorsHeader read_safetensors_header(const OpenFile& file, const std::string& path);

}  // namespace fsdp::detail
