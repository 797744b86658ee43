// The state, besides its inputs, that decides what this thread's operators compute.
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
  // The current states of the default generators: the CPU's, and those of `devices`.
  explicit GeneratorStates(const std::vector<c10::Device>& devices);
  // Adds the current state of `generator`, unless it is there.
  void add(at::Generator generator);
  // The current states of the same generators.
  GeneratorStates now() const;
  // Sets the generators back to these states.
  void restore() const;

 private:
  GeneratorStates() = default;
  struct State {
    at::Generator generator;
    at::Tensor state;
  };
  std::vector<State> states_;
};

// The autocast state of every device type.
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

// While it lives, this thread does not cache casts of parameters for other operators: a cast with a graph
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

// While it lives, this thread computes with the random numbers and autocast state it had when `generators`
// (null: random numbers continue) and `autocast` were taken. It does not cache casts of parameters: the
// optimizer is about to change them, and autocast cleared its cache after forward.
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
