// Two files that every rank writes for the launcher: the message of its failure (TORCHELASTIC_ERROR_FILE) and
// the number of its current step (FSDP_STEP_FILE).
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::launch {

// What a rank says about its end.
struct Message {
  std::string text;
  int culprit = -1;  // the other rank whose failure it reports; -1: it does not say so
};

// A temporary folder with a file per rank, which ranks may create; deleted by the destructor. The constructor
// throws IoError.
class ErrorFiles {
 public:
  ErrorFiles();
  ~ErrorFiles();
  ErrorFiles(const ErrorFiles&) = delete;
  ErrorFiles& operator=(const ErrorFiles&) = delete;

  const std::string& folder() const { return folder_; }
  // The file into which rank `rank` writes the message of its failure.
  std::string path(int rank) const { return folder_ + "/rank-" + std::to_string(rank) + ".json"; }
  Message read(int rank) const;
  // The file into which the rank writes the number of its current step, as text.
  std::string step_path(int rank) const { return folder_ + "/rank-" + std::to_string(rank) + ".step"; }
  int64_t read_step(int rank) const;  // -1: it wrote none

 private:
  std::string folder_;
};

// Reads what torch.distributed.elastic writes:
//   {"message": {"message": "RuntimeError: no data", "extraInfo": {"timestamp": "1700000000"}}}
// or {"message": "no data"}. Our ranks add "culprit": 3 to extraInfo if rank 3's failure made this rank fail.
// Text that is not such JSON is the message itself. "rank" is the rank that wrote it.
Message parse_message(const std::string& text, int rank);

// Writes `text` to TORCHELASTIC_ERROR_FILE, in the same form, if a launcher has set it. True if the launcher
// is ours: it prints the message, once for all ranks that have the same.
bool leave_message(const std::string& text);

// The rank that `text`, an error of rank `rank`, says was at fault; -1: it names no other. These are the
// messages of CommError: "rank 1: all_reduce (...) failed after 3 ms: rank 0 (pid 7) died", and of a
// rendezvous to which one rank did not come.
int blamed_rank(const std::string& text, int rank);

}  // namespace fsdp::launch
