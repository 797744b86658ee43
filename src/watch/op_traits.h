// OpTraits: what an operator does with its arguments, according to its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

#include "watch/overrides.h"

namespace fsdp::detail {

struct OpTraits {
  size_t arguments = 0;
  bool view = false;             // returns views of its inputs, reads no data
  bool metadata = false;         // changes the tensor, not its data: detach_, t_, requires_grad_
  bool hides = false;            // its result keeps an input's memory hidden from the observer
  bool norm = false;             // a norm over all elements
  bool joins = false;            // cat, dot: looks at whole vectors
  bool absolute = false;         // abs
  bool largest = false;          // the largest of all elements, or along a dimension
  OpOverride instead = nullptr;  // our replacement, if there is one
  bool casts = false;            // its inputs may be cast: Note [Inputs of units]
  uint64_t writes = 0;           // bit i: argument i is written to
  uint64_t statistics = 0;       // bit i: argument i is updated though its schema does not say so

  bool writes_argument(size_t i) const { return i < 64 && ((writes >> i) & 1) != 0; }
  bool is_statistic(size_t i) const { return i < 64 && ((statistics >> i) & 1) != 0; }
};

// Looked up once per operator and thread.
const OpTraits& traits_of(const c10::OperatorHandle& op);

}  // namespace fsdp::detail
