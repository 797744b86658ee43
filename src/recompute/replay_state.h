// What, besides its inputs, decides what operators of this thread compute.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <optional>
#include <vector>

namespace fsdp::detail {

// States of the default generators: the CPU's, and those of the devices that tensors are on.
class GeneratorStates {
 public:
  // Of this moment.
  explicit GeneratorStates(const std::vector<c10::Device>& devices);
  // They go on from here.
  void restore() const;

 private:
  struct State {
    at::Generator generator;
    at::Tensor state;
  };
  std::vector<State> states_;
};

// Autocast of every device type.
class AutocastState {
 public:
  AutocastState();
  void restore() const;

 private:
  struct Setting {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };
  std::vector<Setting> settings_;
  bool cache_;
};

// While it lives, this thread computes as it did when `generators` (null: random numbers go on as they are)
// and `autocast` were taken. It keeps no casts of parameters: the optimizer is about to change them, and
// whoever clears LibTorch's cache of them did so after forward.
class Replay {
 public:
  Replay(const GeneratorStates* generators, const AutocastState& autocast,
         const std::vector<c10::Device>& devices);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  std::optional<GeneratorStates> generators_before_;
  AutocastState autocast_before_;
};

}  // namespace fsdp::detail
