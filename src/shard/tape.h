// Tape: the operators of a constructor, to be replayed later.
//
// Note [Deferred initialisation]
// Inside on_meta() the dispatcher passes every operator to us first, by the key DeferredInit. The operator is
// recorded on a tape and runs on the meta device, where tensors have shapes and no memory. The storages it
// makes know their tape and their number on it. Replaying the same operators in the same order, with the
// random numbers that the constructor would have drawn, gives the same bits. Memory comes and goes during the
// replay: a storage is handed over and dropped after the last operator that touches it, so that only tensors
// that are not finished are whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace fsdp::detail {

// A tensor on the tape.
struct TapedTensor {
  int64_t storage = -1;  // its number on the tape
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  at::ScalarType type = at::kFloat;
};

class Tape : public std::enable_shared_from_this<Tape> {
 public:
  Tape();

  // Runs an operator on the meta device and records it.
  void record(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  // The random numbers that the replay starts with: a generator's state [bytes].
  at::Tensor random_state;

  // Replays the tape. Calls `done(tensor, values)` for each of `wanted` as soon as its values are final.
  void replay(const std::vector<TapedTensor>& wanted,
              const std::function<void(size_t, const at::Tensor&)>& done) const;

  // The tape of a tensor made while a tape ran, and its place on it, or null.
  static std::shared_ptr<Tape> of(const at::Tensor& tensor);
  static TapedTensor place_of(const at::Tensor& tensor);

 private:
  struct Input {
    c10::IValue value;                                // if it holds no tensor of the tape
    std::vector<std::optional<TapedTensor>> tensors;  // else: the tensor, or the elements of a list
  };
  struct Entry {
    c10::OperatorHandle op;
    std::vector<Input> inputs;
    std::vector<int64_t> outputs;  // storages of the resulting tensors, in order; -1: not on the tape
  };
  using Storages = std::unordered_map<int64_t, c10::Storage>;

  Input note_input(const c10::IValue& value);
  void note_outputs(Entry& entry, const torch::jit::Stack& stack, size_t count);
  int64_t number_of(const at::Tensor& tensor);
  std::vector<size_t> last_uses() const;  // by storage: the last entry that touches it
  static void run(const Entry& entry, Storages& storages);

  std::vector<Entry> entries_;
  int64_t storages_ = 0;
};

}  // namespace fsdp::detail
