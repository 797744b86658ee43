#include "recompute/replay_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <array>
#include <mutex>

namespace fsdp::detail {

namespace {

// Device types whose autocast settings a training may use.
constexpr std::array kAutocastDevices{c10::kCPU, c10::kCUDA, c10::kPrivateUse1};

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

GeneratorStates::GeneratorStates(const std::vector<c10::Device>& devices) {
  add(at::globalContext().defaultGenerator(c10::kCPU));
  for (const c10::Device device : devices)
    if (!device.is_cpu()) add(at::globalContext().defaultGenerator(device));
}

void GeneratorStates::add(at::Generator generator) {
  if (std::any_of(states_.begin(), states_.end(),
                  [&](const State& one) { return one.generator == generator; }))
    return;
  at::Tensor state = state_of(generator);
  states_.push_back({.generator = std::move(generator), .state = std::move(state)});
}

GeneratorStates GeneratorStates::now() const {
  GeneratorStates states;
  for (const State& one : states_) states.add(one.generator);
  return states;
}

void GeneratorStates::restore() const {
  for (const State& one : states_) {
    at::Generator generator = one.generator;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(one.state);
  }
}

AutocastState::AutocastState() : cache_(at::autocast::is_autocast_cache_enabled()) {
  for (const c10::DeviceType device : kAutocastDevices)
    settings_.push_back({.device = device,
                         .enabled = at::autocast::is_autocast_enabled(device),
                         .dtype = at::autocast::get_autocast_dtype(device)});
}

void AutocastState::restore() const {
  for (const Setting& one : settings_) {
    at::autocast::set_autocast_enabled(one.device, one.enabled);
    at::autocast::set_autocast_dtype(one.device, one.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_);
}

NoCastCache::NoCastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoCastCache::~NoCastCache() { at::autocast::set_autocast_cache_enabled(before_); }

Replay::Replay(const GeneratorStates* generators, const AutocastState& autocast) {
  if (generators != nullptr) {
    generators_before_ = generators->now();
    generators->restore();
  }
  autocast.restore();
  at::autocast::set_autocast_cache_enabled(false);
}

Replay::~Replay() {
  autocast_before_.restore();
  if (generators_before_) generators_before_->restore();
}

}  // namespace fsdp::detail
