// Converts between a rank's tensors and the entries of a state dict.
#pragma once

#include <fsdp/state_dict.h>

#include <string>

#include "checkpoint/held.h"

namespace fsdp::detail {

StateEntry whole_entry(const at::Tensor& tensor);
// The boxes this rank holds, copied.
StateEntry box_entry(const Held& held, const StateDictOptions& options);
StateEntry flat_entry(const at::Tensor& flat, const StateDictOptions& options);

// A copy, in host memory if the options say so.
at::Tensor kept(const at::Tensor& tensor, const StateDictOptions& options);

// The reason why `entry`, which anyone may have made, cannot fill `held`; "" if it can. `flat`: it has this
// rank's elements in memory order.
std::string mismatch(const Held& held, const StateEntry& entry, bool flat);
void fill(const Held& held, const StateEntry& entry);
void fill_flat(const Held& held, const StateEntry& entry);
// Fills all of `tensor`, whatever its memory order is.
void fill_whole(const at::Tensor& tensor, const StateEntry& entry);

}  // namespace fsdp::detail
