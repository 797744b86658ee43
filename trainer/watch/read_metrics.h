// Reads a run's metrics.jsonl.
#pragma once

#include <string>
#include <vector>

#include "trainer/watch/records.h"

namespace fsdp::watch {

// An orderly end, or an event. `superseded`: the run was resumed from a step before it.
struct PastEvent {
  EventRecord event = {};
  bool superseded = false;
};

// The records of a run, each kind in the order of the file. Superseded ones are dropped: Note [The lines of
// metrics.jsonl]. Events are kept, since they tell what happened.
struct RunMetrics {
  std::vector<StartRecord> starts = {};
  std::vector<ResumeRecord> resumes = {};
  std::vector<StepRecord> steps = {};
  std::vector<EvalRecord> evals = {};
  std::vector<CheckpointRecord> checkpoints = {};
  std::vector<UnitsRecord> units = {};
  std::vector<MemoryRecord> memory = {};
  std::vector<PastEvent> events = {};
  std::vector<EndRecord> ends = {};

  int64_t superseded_steps = 0;         // number of dropped StepRecords
  std::vector<std::string> notes = {};  // lines that were skipped, with file:line and why
};

// Throws IoError if the file cannot be read. A line that is no record is skipped with a note, so a run that
// was killed while it wrote can be read, and one that is still being written.
RunMetrics read_metrics(const std::string& path);
// The same for a text; `path` is its name in notes.
RunMetrics parse_metrics(const std::string& text, const std::string& path);

}  // namespace fsdp::watch
