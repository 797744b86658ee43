// Checkpoints as files: look into one, check it, compare two, and exchange weights with Hugging Face.
//
// No tensor and no LibTorch: the `fsdp ckpt` command is made of these. Every function streams: blocks of
// 1 MiB are in memory, and whole tensors only where their memory order is not row-major (channels-last
// weights). They block, print nothing, and may run in several threads at once.
//
// Every function throws CheckpointError for a checkpoint or Hugging Face folder that is damaged, incomplete
// or in another format, and IoError where the file system refuses. No pickle is ever opened.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

// Called after each piece, with the bytes so far and of all.
using ByteProgress = std::function<void(int64_t done, int64_t total)>;

struct SavedTensorInfo {
  std::string name;
  std::string dtype;           // as safetensors names it: "F32", "BF16", ...; and "C128"
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t bytes = 0;
  int64_t boxes = 0;  // pieces it is saved in
};

struct SavedFileInfo {
  std::string name;
  int64_t bytes = 0;
};

struct CheckpointInfo {
  std::string folder;  // of the checkpoint itself
  std::string id;
  int64_t step = 0;
  int world = 1;       // ranks that saved it; 0: not known
  std::string writer;  // "fsdp.cpp 0.1.0"
  int64_t tensor_bytes = 0;
  int64_t file_bytes = 0;
  std::vector<SavedTensorInfo> tensors;        // by name
  std::map<std::string, std::string> aliases;  // another name of a tied parameter -> its name in `tensors`
  std::vector<SavedFileInfo> files;
  std::string run;  // what is not a tensor, as a JSON object
};

// What a checkpoint holds, from its manifest alone. `path` is a checkpoint, a run's folder, whose latest is
// taken, or a folder of safetensors that transformers or torch.distributed.checkpoint wrote, which has no
// step and no hashes; the same is true of every `path` below.
CheckpointInfo inspect_checkpoint(const std::string& path);

struct VerifiedCheckpoint {
  std::string folder;
  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;
  bool hashed = true;  // false: files of others, which have no hashes. They could be read, and that is all
};

// Reads all of it and compares every block with its hash. Throws at the first that differs, and names the
// tensors that lie in it.
VerifiedCheckpoint verify_checkpoint(const std::string& path, const ByteProgress& progress = {});

struct TensorDifference {
  std::string name;
  std::string dtype;
  int64_t elements = 0;    // whose bits differ
  int64_t of = 0;          // elements of the tensor
  bool is_number = false;  // of a floating or complex dtype: `largest` says something
  double largest = 0;      // absolute difference; infinite where only one side is a NaN
};

// A tensor whose dtypes or shapes differ.
struct TensorMismatch {
  SavedTensorInfo first, second;
};

struct CheckpointDifference {
  std::string first, second;  // folders of the two
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

// Compares tensors by name, however many ranks saved them. A tied parameter is compared under each of its
// names, or once where both checkpoints tie it.
CheckpointDifference diff_checkpoints(const std::string& first, const std::string& second,
                                      const ByteProgress& progress = {});

// A model that was exported or imported.
struct ConvertedModel {
  std::string folder;      // that was written: of Hugging Face, or the new checkpoint
  std::string model_type;  // "gpt2", "llama"; empty for export_safetensors
  int64_t tensors = 0;
  int64_t bytes = 0;
  std::vector<std::string> files;  // with weights
};

struct ExportOptions {
  // Values of config.json, as a JSON object, for export_hf. They win over those the checkpoint has in
  // run["model_config"]. What shapes do not say must be in one of the two: model_type, heads, epsilon, the
  // longest sequence.
  std::string config = {};
  std::string dtype = {};                  // of floating-point weights: "F32", "BF16", "F16"; empty: as saved
  int64_t max_file_bytes = 5'000'000'000;  // weights of one file; a larger tensor gets one of its own
  ByteProgress progress = {};
};

// Writes the weights of a GPT-2 or Llama of models/ as from_pretrained of transformers reads them: `folder`,
// which must not exist, with config.json and model.safetensors, or several files and their index. Optimizer
// state stays behind. A failure leaves no `folder`; a value that `dtype` cannot hold is one.
ConvertedModel export_hf(const std::string& path, const std::string& folder,
                         const ExportOptions& options = {});

// The same for any model, without a config: parameters and buffers whole, under their names. A tied parameter
// is there once, under the name it was saved by; `__metadata__` of its file has its other names, as
// safetensors.torch.save_model writes them. load() takes the folder.
ConvertedModel export_safetensors(const std::string& path, const std::string& folder,
                                  const ExportOptions& options = {});

struct HfImportOptions {
  int64_t step = 0;  // of the new checkpoint
  ByteProgress progress;
};

// Writes the weights of a Hugging Face folder as the first checkpoint of the run's folder `run_folder`, with
// its config.json in run["model_config"]. Weights only: an optimizer starts anew.
ConvertedModel import_hf(const std::string& folder, const std::string& run_folder,
                         const HfImportOptions& options = {});

}  // namespace fsdp
