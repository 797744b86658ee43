// The terminal or log that progress is written to.
#pragma once

#include <string>

namespace fsdp::watch {

// How a stream is written to.
struct Terminal {
  bool live = false;  // redraw one line; else plain lines
  bool utf8 = false;
  bool color = false;
  int width = 0;  // 0: ask the terminal before each line
};

// Returns what the stream `fd` and the environment (TERM, NO_COLOR, LC_ALL, LC_CTYPE, LANG) allow.
Terminal find_terminal(int fd);

// Columns of the terminal `fd`. If it does not know: COLUMNS, or 80.
int terminal_width(int fd);

// Writes all of `text`, or drops the rest if nobody reads. Never raises SIGPIPE.
void write_or_drop(int fd, const std::string& text);

}  // namespace fsdp::watch
