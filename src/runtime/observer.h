// Sees every operator, and makes sure that what it reads is there.
#pragma once

namespace fsdp::detail {

// Counted: the observer is there while a sharded model is.
void install_observer();
void remove_observer();

}  // namespace fsdp::detail
