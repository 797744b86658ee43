#include "base/bytes_text.h"

#include <iomanip>
#include <sstream>

namespace fsdp::detail {

std::string bytes_text(int64_t bytes) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  if (bytes >= int64_t{1} << 30)
    out << static_cast<double>(bytes) / (1 << 30) << " GiB";
  else if (bytes >= int64_t{1} << 20)
    out << static_cast<double>(bytes) / (1 << 20) << " MiB";
  else
    out << static_cast<double>(bytes) / 1024 << " KiB";
  return out.str();
}

}  // namespace fsdp::detail
