// Checks that the boxes of a saved tensor hold all of its elements, each once.
#pragma once

#include <string>
#include <vector>

#include "files/manifest.h"

namespace fsdp::detail {

// True if the elements of a box that lies inside `shape` are contiguous in the row-major tensor.
bool is_run(const Box& box, const std::vector<int64_t>& shape);

// For a tensor with a sound shape. Both throw CheckpointError, which begins with `where`, unless every box
// lies inside the tensor and inside its file and together they are all elements, each once. Boxes as we save
// them: each is contiguous in memory order.
void check_boxes(const SavedTensor& tensor, const std::vector<SavedFile>& files, const std::string& where);
// Accepts any boxes, such as columns that ranks of other programs held.
void check_any_boxes(const SavedTensor& tensor, const std::vector<SavedFile>& files,
                     const std::string& where);

}  // namespace fsdp::detail
