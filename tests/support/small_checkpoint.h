// A small checkpoint: saved as the ranks of a run save theirs, and loaded with every check there is.
#pragma once

#include <map>
#include <string>

#include "files/file_ops.h"
#include "files/manifest.h"

namespace fsdp::testing {

// What a checkpoint holds: the bytes of each tensor, row-major.
struct SmallContents {
  int64_t step = 0;
  std::string id;
  std::map<std::string, std::string> tensors;

  bool operator==(const SmallContents&) const = default;
};

struct SmallSave {
  int64_t step = 1;
  unsigned seed = 1;  // of the values, and the id
  int world = 2;      // ranks that save
  int64_t keep_last = 0;
  int64_t keep_every = 0;
};

// Tensors of several dtypes and shapes, one of them in another memory order, one without elements.
SmallContents small_contents(int64_t step, unsigned seed);

// Saves small_contents(step, seed) into the run's folder: rank 0 begins, every rank writes a file, rank 0
// puts the manifest together, commits and retires.
void save_small(detail::FileOps& files, const std::string& run, const SmallSave& save);

// `path`: a checkpoint or a run's folder. All tensors, through BlockReader.
SmallContents load_small(detail::FileOps& files, const std::string& path);

}  // namespace fsdp::testing
