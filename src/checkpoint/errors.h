// Sends an error of one rank to the others.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace fsdp::detail {

// The exception of `work` as text, from which throw_error() makes an error of the same kind: IoError,
// CheckpointError, c10::Error, or Error for all others. "" if `work` throws nothing.
std::string error_of(const std::function<void()>& work);

// `rank` is the rank that the error comes from; -1: this one.
[[noreturn]] void throw_error(const std::string& text, int rank);

}  // namespace fsdp::detail
