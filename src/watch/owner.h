// Whom watched memory belongs to: all that the observer knows of a sharded model.
#pragma once

#include <c10/core/ScalarType.h>
#include <fsdp/comm.h>

#include <exception>
#include <mutex>
#include <optional>
#include <string>

namespace fsdp::detail {

// Parameters that are gathered and released together.
class WatchedUnit {
 public:
  virtual ~WatchedUnit() = default;

  // Guards pins and storages: a forward may have threads of its own.
  virtual std::recursive_mutex& mutex() = 0;
  // Inside a call of the model or a backward, where operators may read parameters.
  virtual bool may_read() const = 0;
  // Each rank has only a part of every parameter.
  virtual bool is_sharded() const = 0;
  virtual bool is_gathered() const = 0;

  // From pin() to unpin() an operator reads the unit: it is not released. `mutex` is held.
  virtual void pin() = 0;
  virtual void unpin() = 0;
  // The pinned unit becomes readable for the current stream. `mutex` is held.
  virtual void use() = 0;
  // An operator is about to read or write a shard, its gradient, or a moment of it.
  virtual void before_touch() = 0;
  // An operator is about to write to a shard.
  virtual void before_write() = 0;
  // An operator is about to write to a moment of one: a save in the background may still read it.
  virtual void before_moment_write() = 0;
  // Throws where the unit may be read by other ranks: an operator that writes to it reads it as well.
  virtual void check_write() const = 0;
  // An operator met `error`. It is kept for last_error(); returns what to throw, with advice where there is
  // any.
  virtual std::exception_ptr explain(const std::exception_ptr& error) = 0;

  // Note [Inputs of units]: whether inputs of its operators are cast to its compute dtype, and to what their
  // results are; none: as they come.
  virtual bool casts_inputs() const = 0;
  virtual std::optional<at::ScalarType> output_type() const = 0;

  // The ranks over which BatchNorm takes its statistics; null: this one alone.
  virtual Comm* batch_norm_ranks() = 0;
};

// The parameters of a unit that share one storage.
class WatchedRegion {
 public:
  virtual ~WatchedRegion() = default;

  virtual WatchedUnit& owner() const = 0;
  // The parameter at a storage offset.
  virtual std::string name_at(int64_t offset) const = 0;
  // Its parameters always have their memory.
  virtual bool is_permanent() const = 0;
  // What its parameters are views of while gathered.
  virtual const c10::Storage& view_storage() const = 0;
};

}  // namespace fsdp::detail
