// Writes an event file of TensorBoard: scalars and texts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "trainer/watch/append_file.h"

namespace fsdp::watch {

struct Scalar {
  std::string tag = {};  // "loss"; a slash begins a group: "time/forward"
  double value = 0;
};

// An event file in `folder`, named events.out.tfevents.<time>.<host>. Threads: one at a time. Each call
// appends whole records with one write(), so a killed process leaves at most one torn record, which
// TensorBoard skips. Calls throw IoError.
class EventFile {
 public:
  // A new file. A run that was resumed after step `resumed` makes TensorBoard drop the later steps of its
  // earlier files.
  explicit EventFile(const std::string& folder, std::optional<int64_t> resumed = {});

  // `time` in seconds since 1970; 0: now.
  void scalars(int64_t step, std::span<const Scalar> values, double time = 0);
  // Markdown, in TensorBoard's tab "Text".
  void text(int64_t step, const std::string& tag, const std::string& markdown, double time = 0);

  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace fsdp::watch
