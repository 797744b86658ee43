#include "trainer/watch/metrics_writer.h"

#include <chrono>
#include <cmath>
#include <variant>

namespace fsdp::watch {

MetricsWriter::MetricsWriter(std::string path) : file_(std::move(path), AppendFile::Existing::append) {
  file_.cut_torn_line();
}

void MetricsWriter::write(Record record) {
  const double now = seconds_since_1970();
  std::visit([now](auto& one) { one.time = one.time == 0 ? now : one.time; }, record);
  file_.append(to_json(record) + "\n");
}

double seconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  // Milliseconds are enough, and make short lines.
  return std::round(std::chrono::duration<double, std::milli>(now).count()) / 1e3;
}

}  // namespace fsdp::watch
