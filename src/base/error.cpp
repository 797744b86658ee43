#include <fsdp/error.h>

#include <cstring>

namespace fsdp {

namespace {

std::string describe(const CommError::Details& d) {
  const std::string op = d.op + (d.label.empty() ? "" : " '" + d.label + "'");
  std::string text = "rank " + std::to_string(d.rank);
  if (!d.activity.empty())
    return text + ", " + d.activity + " (" + op + ", after " + std::to_string(d.elapsed.count()) +
           " ms): " + d.reason;
  text += ": " + op + " (operation " + std::to_string(d.sequence) + " of its group) failed after " +
          std::to_string(d.elapsed.count()) + " ms: " + d.reason;
  return text;
}

}  // namespace

CommError::CommError(Details details) : Error(describe(details)), details_(std::move(details)) {}

IoError::IoError(std::string doing, std::string path, int code, std::string more)
    : Error("cannot " + doing + " " + path + (code != 0 ? std::string(": ") + std::strerror(code) : "") +
            (more.empty() ? "" : (code != 0 ? "; " : ": ") + more)),
      doing_(std::move(doing)),
      path_(std::move(path)),
      more_(std::move(more)),
      code_(code) {}

const char* to_string(CommFault fault) {
  switch (fault) {
    case CommFault::peer_died:
      return "peer_died";
    case CommFault::peer_left:
      return "peer_left";
    case CommFault::timeout:
      return "timeout";
    case CommFault::mismatch:
      return "mismatch";
    case CommFault::aborted:
      return "aborted";
    case CommFault::backend:
      return "backend";
  }
  return "unknown";
}

}  // namespace fsdp
