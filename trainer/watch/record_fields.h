// The members of each record, listed once for writing and reading. `visit(name, member)` is called for each
// member after "kind" and "time".
#pragma once

#include <iterator>
#include <type_traits>
#include <variant>

#include "trainer/watch/records.h"

namespace fsdp::watch {

template <typename Visit, typename R>
void visit_fields(Visit& visit, R& record) {
  using Kind = std::remove_const_t<R>;
  if constexpr (std::is_same_v<Kind, StartRecord>) {
    visit("run", record.run);
    visit("ranks", record.ranks);
    visit("nodes", record.nodes);
    visit("backend", record.backend);
    visit("device", record.device);
    visit("model", record.model);
    visit("parameters", record.parameters);
    visit("units", record.units);
    visit("steps", record.steps);
    visit("bytes_per_rank", record.bytes_per_rank);
    visit("seconds", record.seconds);
    visit("config", record.config);
    visit("versions", record.versions);
  } else if constexpr (std::is_same_v<Kind, ResumeRecord>) {
    visit("step", record.step);
    visit("from", record.from);
  } else if constexpr (std::is_same_v<Kind, StepRecord>) {
    visit("step", record.step);
    visit("epoch", record.epoch);
    visit("loss", record.loss);
    visit("lr", record.learning_rate);
    visit("gradient_norm", record.gradient_norm);
    visit("tokens", record.tokens);
    visit("tokens_per_second", record.tokens_per_second);
    visit("mfu", record.mfu);
    visit("seconds", record.seconds);
    visit("times", record.times);
    visit("memory_bytes", record.memory_bytes);
    visit("skipped", record.skipped);
  } else if constexpr (std::is_same_v<Kind, StepTimes>) {
    visit("data", record.data);
    visit("forward", record.forward);
    visit("backward", record.backward);
    visit("optimizer", record.optimizer);
    visit("checkpoint", record.checkpoint);
    visit("waiting", record.waiting);
  } else if constexpr (std::is_same_v<Kind, EvalRecord>) {
    visit("step", record.step);
    visit("loss", record.loss);
    visit("tokens", record.tokens);
  } else if constexpr (std::is_same_v<Kind, CheckpointRecord>) {
    visit("step", record.step);
    visit("path", record.path);
    visit("seconds", record.seconds);
    visit("blocking_seconds", record.blocking_seconds);
  } else if constexpr (std::is_same_v<Kind, UnitsRecord>) {
    visit("step", record.step);
    visit("steps", record.steps);
    visit("units", record.units);
  } else if constexpr (std::is_same_v<Kind, UnitTraffic>) {
    visit("name", record.name);
    visit("gathers", record.gathers);
    visit("reduces", record.reduces);
    visit("bytes", record.bytes);
    visit("seconds", record.seconds);
  } else if constexpr (std::is_same_v<Kind, MemoryRecord>) {
    visit("step", record.step);
    visit("ranks", record.ranks);
  } else if constexpr (std::is_same_v<Kind, RankMemory>) {
    visit("rank", record.rank);
    visit("kinds", record.kinds);
  } else if constexpr (std::is_same_v<Kind, EventRecord>) {
    visit("step", record.step);
    visit("text", record.text);
  } else {
    static_assert(std::is_same_v<Kind, EndRecord>);
    visit("step", record.step);
    visit("steps", record.steps);
    visit("seconds", record.seconds);
    visit("reason", record.reason);
    visit("exit", record.exit_code);
  }
}

// The value of the member "kind" for each alternative of Record, in its order.
inline constexpr const char* kKinds[] = {"start", "resume", "step",  "eval", "checkpoint",
                                         "units", "memory", "event", "end"};
static_assert(std::size(kKinds) == std::variant_size_v<Record>);

}  // namespace fsdp::watch
