// The text a user reads when a rank failed.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace fsdp::detail {

// The message of `error`, with its C++ backtrace if TORCH_SHOW_CPP_STACKTRACES=1.
std::string message_of(const c10::Error& error);

// `text` is an error message of rank `rank`: "rank 1 of 4<failed>: text". If it begins with "rank 1" itself,
// " of 4" is inserted there instead. If it begins with another rank: "rank 1 of 4<failed>, and says: text".
std::string name_rank(const std::string& text, int rank, int size, const std::string& failed = "");

// The rank that `text` begins with, as in "rank 3: no data"; -1 if there is none.
int rank_named_first(const std::string& text);

// "was ended by SIGTERM (signal 15): somebody asked it to end, such as ...".
std::string describe_signal(int number);

}  // namespace fsdp::detail
