// The owner of watched memory: the interface through which the observer knows a sharded model.
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
  // True inside a call of the model or a backward, where operators may read parameters.
  virtual bool may_read() const = 0;
  // True if each rank has only a part of every parameter.
  virtual bool is_sharded() const = 0;
  virtual bool is_gathered() const = 0;

  // From pin() to unpin() an operator reads the unit, so it is not released. `mutex` is held.
  virtual void pin() = 0;
  virtual void unpin() = 0;
  // Makes the pinned unit readable for the current stream. `mutex` is held.
  virtual void use() = 0;
  // An operator is about to read or write a shard, its gradient, or a moment of it.
  virtual void before_touch() = 0;
  // An operator is about to write to a shard.
  virtual void before_write() = 0;
  // An operator is about to write to a moment, which a background save may still read.
  virtual void before_moment_write() = 0;
  // Throws if other ranks may read the unit: an operator that writes to it reads it as well.
  virtual void check_write() const = 0;
  // An operator threw `error`. Keeps it for last_error(), and returns the exception to throw, with advice if
  // there is any.
  virtual std::exception_ptr explain(const std::exception_ptr& error) = 0;

  // Note [Inputs of units]: casts_inputs() is true if inputs of its operators are cast to its compute dtype.
  // output_type() is the dtype of their results; none: not cast.
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
  // True if its parameters always have their memory.
  virtual bool is_permanent() const = 0;
  // The storage that its parameters are views of while gathered.
  virtual const c10::Storage& view_storage() const = 0;
};

}  // namespace fsdp::detail
