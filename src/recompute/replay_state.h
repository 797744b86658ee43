// What, besides its inputs, decides what operators of this thread compute.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <vector>

namespace fsdp::detail {

// States of generators.
class GeneratorStates {
 public:
  // The default generators as they are now: the CPU's, and those of `devices`.
  explicit GeneratorStates(const std::vector<c10::Device>& devices);
  // Adds `generator` as it is now, unless it is there.
  void add(at::Generator generator);
  // The same generators, as they are now.
  GeneratorStates now() const;
  // The generators go on from these states.
  void restore() const;

 private:
  GeneratorStates() = default;
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

// While it lives, this thread keeps no casts of parameters for other operators to find: one with a graph
// belongs to a single run.
class NoCastCache {
 public:
  NoCastCache();
  ~NoCastCache();
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  bool before_;
};

// While it lives, this thread computes as it did when `generators` (null: random numbers go on as they are)
// and `autocast` were taken. It keeps no casts of parameters: the optimizer is about to change them, and
// whoever clears LibTorch's cache of them did so after forward.
class Replay {
 public:
  Replay(const GeneratorStates* generators, const AutocastState& autocast);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  std::optional<GeneratorStates> generators_before_;
  AutocastState autocast_before_;
};

}  // namespace fsdp::detail
