// Appends to a run's metrics.jsonl.
#pragma once

#include <string>

#include "trainer/watch/append_file.h"
#include "trainer/watch/records.h"

namespace fsdp::watch {

// Note [The lines of metrics.jsonl]
// Rank 0 appends each line with one write() before it goes on. So a killed process leaves whole lines, and at
// most one torn line at the end. Readers skip a torn line with a note; the next process that appends cuts it
// off. Lines are never changed: a run resumed after step N adds a ResumeRecord, which tells readers to drop
// the records above it whose step is higher than N.

// One per run, on rank 0. Threads: one at a time.
class MetricsWriter {
 public:
  // Opens the file, which is made if it does not exist, and cuts a torn last line off. Throws IoError.
  explicit MetricsWriter(std::string path);

  // The line is in the file when this returns. Throws IoError; the file then ends with the line before.
  void write(Record record);

 private:
  AppendFile file_;
};

// Seconds since 1970.
double seconds_since_1970();

}  // namespace fsdp::watch
