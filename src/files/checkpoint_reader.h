// CheckpointReader: a checkpoint's manifest, its files, and the bytes of its tensors in row-major order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "files/block_file.h"
#include "files/file_ops.h"
#include "files/manifest.h"

namespace fsdp::detail {

class CheckpointReader {
 public:
  // `path` is a checkpoint, or a run's folder, meaning its latest. Throws CheckpointError or IoError; the
  // message says what `path` is instead.
  CheckpointReader(FileOps& files, const std::string& path);
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  // A file of the manifest, by its index. Valid until the next call: only a few files stay open, since each
  // keeps a block in memory.
  BlockReader& file(int32_t index);

 private:
  struct Opened {
    int32_t index;
    std::unique_ptr<BlockReader> reader;
  };

  FileOps& files_;
  std::string folder_;
  Manifest manifest_;
  std::list<Opened> opened_;  // the last used first
};

// One tensor of a checkpoint. Boxes that are contiguous in the row-major tensor are streamed. A tensor with
// another memory order (Note [Saved tensors]) or with other boxes is assembled in memory at first use.
class SavedTensorReader {
 public:
  SavedTensorReader(CheckpointReader& checkpoint, const SavedTensor& tensor);

  int64_t bytes() const { return bytes_; }
  // Passes the bytes [begin, end) of the row-major tensor to `take`, in order and in several pieces. Throws
  // CheckpointError before it passes a byte of a damaged block.
  void read(int64_t begin, int64_t end, const BlockReader::Take& take);

 private:
  struct Piece {
    int64_t begin;  // in bytes of the tensor
    int64_t end;
    const SavedBox* saved;
  };
  void assemble();
  void scatter(const SavedBox& saved);

  CheckpointReader& checkpoint_;
  const SavedTensor& tensor_;
  int64_t element_ = 0;  // bytes
  int64_t bytes_ = 0;
  std::vector<Piece> pieces_;     // by `begin`; row-major tensors only
  std::vector<std::byte> whole_;  // the assembled tensor, after first use
};

}  // namespace fsdp::detail
