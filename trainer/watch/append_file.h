// Files that a run appends to.
#pragma once

#include <string>

namespace fsdp::watch {

// A file that is only appended to. Threads: one at a time. Calls throw IoError.
class AppendFile {
 public:
  enum class Existing { append, refuse };

  // Makes the file if it does not exist. `Existing::refuse`: it must not exist.
  AppendFile(std::string path, Existing existing);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // One write(), where the system takes it whole. After an error the file ends as before the call.
  void append(const std::string& bytes);
  // Removes what follows the last line break.
  void cut_torn_line();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace fsdp::watch
