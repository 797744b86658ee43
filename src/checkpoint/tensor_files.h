// Writes tensors to the files of a checkpoint, and reads them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/held.h"
#include "files/block_file.h"
#include "files/file_ops.h"
#include "files/manifest.h"

namespace fsdp::detail {

// Note [Files of a rank]
// A rank writes its own elements and sends nothing to others. Its part of a tensor is one contiguous range,
// which is a few boxes (Note [Boxes]). PyTorch's reader takes one box per tensor and file, so the first box
// of every tensor goes into the rank's first file, the second into its second, and so on: mostly one large
// file, and small ones for tensors that end inside a row. `part` is "model" or "state".
//
// Adds the written tensors to `manifest`. `written` is called for every tensor once all of it has been read.
using Written = std::function<void(const Held&)>;
void write_tensors(FileOps& files, const std::string& folder, int rank, const std::string& part,
                   const std::vector<Held>& tensors, Manifest& manifest, const Written& written = {});

// Reads a rank's elements from the boxes that other ranks have saved.
class TensorReader {
 public:
  // `manifest` must outlive it.
  TensorReader(const FileOps& files, std::string folder, const Manifest& manifest);

  // Reads and checks every block that fill() would use.
  void verify(const std::vector<Held>& tensors);
  // Sets the elements of `flat` to the saved ones, cast if the dtypes differ. Names and shapes must be the
  // manifest's. Throws CheckpointError for a damaged block; elements may then have bytes of it.
  void fill(const std::vector<Held>& tensors);

 private:
  BlockReader& file(int32_t index);

  const FileOps& files_;
  std::string folder_;
  const Manifest& manifest_;
  std::unique_ptr<BlockReader> open_;  // one file at a time: reads are in the order of files
  int32_t open_index_ = -1;
};

}  // namespace fsdp::detail
