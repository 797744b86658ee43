// The timeline of a step's memory as text.
#include <fsdp/sharded_model.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "base/bytes_text.h"

namespace fsdp {

namespace {

constexpr int kNumber = 12;
constexpr int64_t kBar = 40;

void write_row(std::ostream& out, int label, const std::string& moment,
               std::initializer_list<std::string> numbers) {
  out << std::left << std::setw(label) << moment << std::right;
  for (const std::string& number : numbers) out << std::setw(kNumber) << number;
}

}  // namespace

std::string format_timeline(const std::vector<MemorySample>& samples) {
  size_t label = 6;  // of "moment"
  int64_t most = 1;
  for (const MemorySample& one : samples) {
    label = std::max(label, one.moment.size());
    most = std::max(most, one.memory.current_bytes);
  }
  std::ostringstream out;
  const auto width = static_cast<int>(label);
  write_row(out, width, "moment", {"shards", "gradients", "slots", "buffers", "current"});
  out << "\n";
  for (const auto& [moment, memory] : samples) {
    using detail::bytes_text;
    write_row(out, width, moment,
              {bytes_text(memory.parameter_bytes), bytes_text(memory.gradient_bytes),
               bytes_text(memory.arena_bytes + memory.overflow_bytes),
               bytes_text(memory.buffer_bytes + memory.partial_sum_bytes + memory.wire_bytes),
               bytes_text(memory.current_bytes)});
    out << "  " << std::string(static_cast<size_t>(kBar * memory.current_bytes / most), '#') << "\n";
  }
  return out.str();
}

}  // namespace fsdp
