#include "files/tensor_info.h"

#include "files/checkpoint_reader.h"
#include "files/safetensors.h"

namespace fsdp {

SavedTensorInfo detail::tensor_info(const std::string& name, const SavedTensor& tensor) {
  SavedTensorInfo info{.name = name,
                       .dtype = tensor.real_pairs ? kComplex128 : tensor.dtype,
                       .shape = tensor.shape,
                       .bytes = checked_numel(tensor.shape, name) * dtype_bytes(tensor.dtype),
                       .boxes = static_cast<int64_t>(tensor.boxes.size())};
  if (tensor.real_pairs) info.shape.pop_back();
  return info;
}

CheckpointInfo inspect_checkpoint(const std::string& path) {
  const detail::CheckpointReader reader(detail::posix_files(), path);
  const detail::Manifest& manifest = reader.manifest();
  CheckpointInfo info{.folder = reader.folder(),
                      .id = manifest.id,
                      .step = manifest.step,
                      .world = manifest.world,
                      .writer = manifest.writer,
                      .tensor_bytes = 0,
                      .file_bytes = 0,
                      .tensors = {},
                      .aliases = manifest.aliases,
                      .files = {},
                      .run = manifest.run.dump()};
  for (const auto& [name, tensor] : manifest.tensors) {
    info.tensors.push_back(detail::tensor_info(name, tensor));
    info.tensor_bytes += info.tensors.back().bytes;
  }
  for (const detail::SavedFile& file : manifest.files) {
    info.files.push_back({.name = file.name, .bytes = file.header_bytes + file.data_bytes});
    info.file_bytes += info.files.back().bytes;
  }
  return info;
}

}  // namespace fsdp
