// write_run FOLDER STEPS [RESUME_STEP [EVERY]]: a run's metrics.jsonl and event file, with known values. With
// RESUME_STEP the run goes on after that step. Only each EVERYth step is recorded. Prints the path of the
// event file.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "trainer/watch/event_file.h"
#include "trainer/watch/metrics_writer.h"

using namespace fsdp::watch;

namespace {

StepRecord step_of(int64_t step) {
  StepRecord record;
  record.step = step;
  record.epoch = static_cast<double>(step) / 100;
  record.loss = 4.0 / static_cast<double>(step);
  record.learning_rate = 1e-3;
  record.gradient_norm = 1.5;
  record.tokens = step * 512;
  record.tokens_per_second = 1000;
  record.seconds = 0.5;
  record.times = {.data = 0.01, .forward = 0.15, .backward = 0.25, .optimizer = 0.05, .waiting = 0.04};
  record.memory_bytes = 1 << 20;
  return record;
}

StartRecord start_of(const std::string& folder, int64_t steps) {
  StartRecord start{.run = folder, .ranks = 2, .backend = "shm", .device = "cpu", .model = "gpt2-tiny"};
  start.steps = steps;
  start.config = {{"optimizer", "adamw"}};
  start.versions = {{"fsdp.cpp", "0.1.0"}};
  return start;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argv[1];
  const int64_t steps = std::atoll(argv[2]), resumed = argc > 3 ? std::atoll(argv[3]) : 0;
  const int64_t every = argc > 4 ? std::atoll(argv[4]) : 1;
  MetricsWriter metrics(folder + "/metrics.jsonl");
  EventFile events(folder, resumed > 0 ? std::optional(resumed) : std::nullopt);
  metrics.write(start_of(folder, steps));
  if (resumed > 0) metrics.write(ResumeRecord{.step = resumed, .from = "step"});
  events.text(0, "config", "| key | value |\n|---|---|\n| optimizer | adamw |");
  for (int64_t step = resumed + 1; step <= steps; ++step) {
    if (step % every != 0) continue;
    const StepRecord record = step_of(step);
    metrics.write(record);
    const std::vector<Scalar> scalars{{"loss", record.loss}, {"lr", record.learning_rate}};
    events.scalars(step, scalars);
  }
  metrics.write(EvalRecord{.step = steps, .loss = 0.25, .tokens = 64});
  metrics.write(EndRecord{.step = steps, .steps = steps - resumed, .reason = "all steps done"});
  std::cout << events.path() << "\n";
}
