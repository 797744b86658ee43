// The lines that show how far training is. Pure: a state in, a text of a given width out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::watch {

// Everything a line may show. A value that is unset is left out.
struct ProgressState {
  int64_t step = 0;
  int64_t steps = 0;  // 0: the number of steps is not known
  std::optional<double> loss = {};
  std::optional<double> learning_rate = {};
  std::optional<double> gradient_norm = {};
  std::optional<double> tokens_per_second = {};
  std::optional<double> mfu = {};  // 0 to 1
  std::optional<int64_t> memory_bytes = {};
  std::optional<double> seconds_left = {};
};

struct LineStyle {
  int width = 80;      // columns of the terminal
  bool utf8 = false;   // the bar may use characters beyond ASCII
  bool color = false;  // the line may contain escape sequences for colours
};

// The live line: at most `width` columns. What does not fit is left out, the least important value first.
std::string live_line(const ProgressState& state, const LineStyle& style);
// The line for logs: "step 100/1,000  loss 2.3451  lr 3.00e-04 ...", of any length.
std::string plain_line(const ProgressState& state);
// "waiting for rank 3 since 14:02:10 (12 s)", cut to `width` columns; `what` is shortened first.
std::string waiting_line(const std::string& what, const std::string& since, double seconds, int width);

// Columns of `text` on a terminal. Escape sequences take none, wide characters two.
int columns_of(std::string_view text);
// `text` cut to `width` columns, with "..." at its end if something was cut off.
std::string cut_to(const std::string& text, int width);

}  // namespace fsdp::watch
