// The records of a run: the lines of its metrics.jsonl as types. docs/watching.md describes the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fsdp::watch {

// Facts in the order in which they are shown: ("optimizer", "adamw").
using Facts = std::vector<std::pair<std::string, std::string>>;
// Bytes by kind of memory, in the order in which they are shown: ("gradients", 1048576).
using BytesByKind = std::vector<std::pair<std::string, int64_t>>;
// Seconds by what they went into.
using Seconds = std::vector<std::pair<std::string, double>>;

// In every record, `time` is in seconds since 1970. 0: the writer fills in the current time.

// A process group has started to train. A run that was resumed has several.
struct StartRecord {
  double time = 0;
  std::string run = {};  // the run's folder
  int64_t ranks = 0;
  int64_t nodes = 1;
  std::string backend = {};  // how ranks talk: "shm", "nccl"
  std::string device = {};   // "cpu", "NVIDIA H200"
  std::string model = {};
  int64_t parameters = 0;
  int64_t units = 0;
  int64_t steps = 0;                // number of steps the run is to have; 0: unknown
  BytesByKind bytes_per_rank = {};  // as planned
  Seconds seconds = {};             // from the start of rank 0's process to this record, by part
  Facts config = {};                // a summary; config.yaml has all of it
  Facts versions = {};              // of fsdp.cpp, LibTorch, the compiler, NCCL, ...
};

// Training goes on after `step`. Records before this one with a higher step are superseded.
struct ResumeRecord {
  double time = 0;
  int64_t step = 0;
  std::string from = {};  // path of the checkpoint
};

// The seconds of a step on rank 0 by use. `waiting` is for other ranks and the device.
struct StepTimes {
  double data = 0;
  double forward = 0;
  double backward = 0;
  double optimizer = 0;
  double checkpoint = 0;
  double waiting = 0;
};

struct StepRecord {
  double time = 0;
  int64_t step = 0;  // the first is 1
  double epoch = 0;
  double loss = 0;  // mean over the tokens of the global batch; may be NaN or infinite
  double learning_rate = 0;
  std::optional<double> gradient_norm = {};  // before clipping
  int64_t tokens = 0;                        // of all ranks, since the run began
  double tokens_per_second = 0;              // of all ranks
  std::optional<double> mfu = {};            // 0 to 1; unset: the device's peak is not known
  double seconds = 0;
  StepTimes times = {};
  int64_t memory_bytes = 0;  // peak of the step on rank 0
  bool skipped = false;      // not applied, because it was not finite
};

struct EvalRecord {
  double time = 0;
  int64_t step = 0;
  double loss = 0;
  int64_t tokens = 0;  // in the mean
};

struct CheckpointRecord {
  double time = 0;
  int64_t step = 0;
  std::string path = {};
  double seconds = 0;           // from begin to commit
  double blocking_seconds = 0;  // of those, seconds in which training stood still
};

// Communication of one unit.
struct UnitTraffic {
  std::string name = {};
  int64_t gathers = 0;
  int64_t reduces = 0;
  int64_t bytes = 0;                   // sent and received by rank 0
  std::optional<double> seconds = {};  // unset: not measured
};

// Communication of all units in the `steps` steps up to `step`.
struct UnitsRecord {
  double time = 0;
  int64_t step = 0;
  int64_t steps = 0;
  std::vector<UnitTraffic> units = {};
};

struct RankMemory {
  int64_t rank = 0;
  BytesByKind kinds = {};
};

struct MemoryRecord {
  double time = 0;
  int64_t step = 0;
  std::vector<RankMemory> ranks = {};
};

// Something worth telling: early stop, a skipped step, a signal.
struct EventRecord {
  double time = 0;
  int64_t step = 0;
  std::string text = {};
};

// Training has ended in an orderly way. A killed run has no such record.
struct EndRecord {
  double time = 0;
  int64_t step = 0;         // the last one that was done
  int64_t steps = 0;        // done by this process group
  double seconds = 0;       // since its start
  std::string reason = {};  // "all steps done", "early stop", "SIGTERM"
  int64_t exit_code = 0;
};

using Record = std::variant<StartRecord, ResumeRecord, StepRecord, EvalRecord, CheckpointRecord, UnitsRecord,
                            MemoryRecord, EventRecord, EndRecord>;

// One JSON object without a line break. Numbers that JSON cannot hold are the texts "nan", "inf" and "-inf".
// Bytes that are not UTF-8 are replaced.
std::string to_json(const Record& record);

// The record in `line`. Throws std::runtime_error that says what is wrong if it is no JSON object, its kind
// is unknown, or a member is missing or of another type. Members it does not know are ignored.
Record parse_record(const std::string& line);

}  // namespace fsdp::watch
