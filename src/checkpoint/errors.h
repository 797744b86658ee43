// An error of one rank, on its way to the others.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace fsdp::detail {

// What `work` throws, as a text that throw_error() makes an error of the same kind from: IoError,
// CheckpointError, c10::Error, or Error for all others. "" when it throws nothing.
std::string error_of(const std::function<void()>& work);

// `rank` is where it comes from; -1: from here.
[[noreturn]] void throw_error(const std::string& text, int rank);

}  // namespace fsdp::detail
