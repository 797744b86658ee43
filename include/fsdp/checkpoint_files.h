// Checkpoints as files: inspect, verify and compare them, and exchange weights with Hugging Face.
//
// No tensors and no LibTorch: the `fsdp ckpt` command is built on these functions. They stream blocks of 1
// MiB; only a tensor whose memory order is not row-major (channels-last weights) is in memory whole. They
// block, print nothing, and may run in several threads at once.
//
// Every function throws CheckpointError if a checkpoint or Hugging Face folder is damaged, incomplete or in
// another format, and IoError if the file system refuses. No pickle is ever opened.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

// Called after each block, with the bytes done so far and the total.
using ByteProgress = std::function<void(int64_t done, int64_t total)>;

struct SavedTensorInfo {
  std::string name;
  std::string dtype;           // as in safetensors: "F32", "BF16", ...; also "C128"
  std::vector<int64_t> shape;  // shape of the whole tensor
  int64_t bytes = 0;
  int64_t boxes = 0;  // number of pieces it is saved in
};

struct SavedFileInfo {
  std::string name;
  int64_t bytes = 0;
};

struct CheckpointInfo {
  std::string folder;  // the checkpoint's own folder
  std::string id;
  int64_t step = 0;
  int world = 1;       // number of ranks that saved it; 0: unknown
  std::string writer;  // "fsdp.cpp 0.1.0"
  int64_t tensor_bytes = 0;
  int64_t file_bytes = 0;
  std::vector<SavedTensorInfo> tensors;        // by name
  std::map<std::string, std::string> aliases;  // another name of a tied parameter -> its name in `tensors`
  std::vector<SavedFileInfo> files;
  std::string run;  // all values that are not tensors, as a JSON object
};

// Returns the contents of a checkpoint, from its manifest alone. `path` is a checkpoint, a run's folder,
// meaning its latest, or a folder of safetensors files by transformers or torch.distributed.checkpoint, which
// has no step and no hashes. The same is true of every `path` below.
CheckpointInfo inspect_checkpoint(const std::string& path);

struct VerifiedCheckpoint {
  std::string folder;
  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;
  bool hashed = true;  // false: files of other programs have no hashes; they were only read
};

// Reads the whole checkpoint and compares every block with its hash. Throws at the first difference, and
// names the tensors that lie in the damaged block.
VerifiedCheckpoint verify_checkpoint(const std::string& path, const ByteProgress& progress = {});

struct TensorDifference {
  std::string name;
  std::string dtype;
  int64_t elements = 0;    // number of elements whose bits differ
  int64_t of = 0;          // number of elements of the tensor
  bool is_number = false;  // the dtype is floating-point or complex, so `largest` is valid
  double largest = 0;      // largest absolute difference; infinite if only one side is NaN
};

// A tensor whose dtypes or shapes differ.
struct TensorMismatch {
  SavedTensorInfo first, second;
};

struct CheckpointDifference {
  std::string first, second;  // the two folders
  std::vector<std::string> only_in_first, only_in_second;
  std::vector<TensorMismatch> mismatched;
  std::vector<TensorDifference> changed;
  int64_t equal = 0;  // tensors with the same bits
  std::vector<std::string>
      run_keys;  // values of `run` that differ; no tensors, so same_tensors() ignores them

  bool same_tensors() const {
    return only_in_first.empty() && only_in_second.empty() && mismatched.empty() && changed.empty();
  }
};

// Compares tensors by name, whatever number of ranks saved them. A tied parameter is compared under each of
// its names, or once if both checkpoints tie it.
CheckpointDifference diff_checkpoints(const std::string& first, const std::string& second,
                                      const ByteProgress& progress = {});

// The result of an export or import.
struct ConvertedModel {
  std::string folder;      // the folder written: Hugging Face's, or the new checkpoint
  std::string model_type;  // "gpt2", "llama"; empty for export_safetensors
  int64_t tensors = 0;
  int64_t bytes = 0;
  std::vector<std::string> files;  // the weight files
};

struct ExportOptions {
  // JSON object with values for config.json, for export_hf. They override those of the checkpoint's
  // run["model_config"]. One of the two must have the values that shapes do not show: model_type, heads,
  // epsilon, the longest sequence.
  std::string config = {};
  // For export_hf of a checkpoint that has LoRA adapters only: the checkpoint or Hugging Face folder with the
  // base weights. Empty: the one that the trainer saved in the run value `base_weights`.
  std::string base = {};
  std::string dtype = {};                  // dtype of floating-point weights: "F32", "BF16", "F16"; "": own
  int64_t max_file_bytes = 5'000'000'000;  // size limit of a weight file; a larger tensor gets its own file
  ByteProgress progress = {};
};

// Writes the weights of a GPT-2 or Llama of models/ so that from_pretrained of transformers reads them.
// `folder` must not exist; it gets config.json and model.safetensors, or several files and their index.
// Optimizer state is not exported. LoRA adapters are merged into their weights: W + alpha / rank * B A, with
// `lora` of run["model_config"]. After an error, such as a value that `dtype` cannot hold, there is no
// `folder`.
ConvertedModel export_hf(const std::string& path, const std::string& folder,
                         const ExportOptions& options = {});

// The same for any model, without a config: whole parameters and buffers under their names. A tied parameter
// is written once, under the name it was saved by; the file's `__metadata__` has its other names, as
// safetensors.torch.save_model writes them. load() reads the folder.
ConvertedModel export_safetensors(const std::string& path, const std::string& folder,
                                  const ExportOptions& options = {});

struct HfImportOptions {
  int64_t step = 0;  // step of the new checkpoint
  ByteProgress progress;
};

// Writes the weights of a Hugging Face folder as the first checkpoint of the run's folder `run_folder`, with
// its config.json in run["model_config"]. Weights only: an optimizer starts afresh.
ConvertedModel import_hf(const std::string& folder, const std::string& run_folder,
                         const HfImportOptions& options = {});

}  // namespace fsdp
