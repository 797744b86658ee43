// Files of a checkpoint, written and read in hashed blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "files/file_ops.h"
#include "files/manifest.h"

namespace fsdp::detail {

// Writes a new file from its beginning to its end.
class BlockWriter {
 public:
  // Begins `folder`/`name` with `header`. About `data_bytes` will follow.
  BlockWriter(FileOps& files, const std::string& folder, std::string name, const std::string& header,
              int64_t data_bytes = 0);

  void append(std::span<const std::byte> bytes);
  // Syncs and closes the file. Returns its entry for the manifest.
  SavedFile finish();

 private:
  void put(std::span<const std::byte> block);

  FilePtr file_;
  SavedFile saved_;
  std::vector<std::byte> pending_;  // less than a block
};

// Reads bytes of a file after checking the blocks that they lie in.
class BlockReader {
 public:
  // Throws CheckpointError if the file does not have the size or header it was saved with.
  BlockReader(const FileOps& files, const std::string& folder, const SavedFile& saved);

  // Passes the bytes [begin, end) behind the header to `take`, in order and in several pieces. Throws
  // CheckpointError before it passes a byte of a damaged block.
  using Take = std::function<void(std::span<const std::byte>)>;
  void read(int64_t begin, int64_t end, const Take& take);
  // Fills `into` with bytes from `begin` on. Whole blocks are read in place and checked there, without a
  // copy: when it throws CheckpointError, `into` may hold bytes of a damaged block.
  void read_into(int64_t begin, std::span<std::byte> into);

 private:
  std::span<const std::byte> block(int64_t index);
  int64_t block_bytes(int64_t index) const;
  void fetch(int64_t index, std::span<std::byte> into) const;

  FilePtr file_;
  std::string path_;
  const SavedFile& saved_;
  std::vector<std::byte> last_;  // the block read last
  int64_t last_index_ = -1;
};

}  // namespace fsdp::detail
