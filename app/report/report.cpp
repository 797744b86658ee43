#include "app/report/report.h"

#include <fsdp/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "trainer/watch/metrics_writer.h"
#include "trainer/watch/run_folder.h"

namespace fsdp::report {

namespace {

namespace fs = std::filesystem;

// Unset: there is no such file.
std::optional<std::string> text_of(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file && errno == ENOENT) return {};
  if (!file) throw IoError("open", path, errno);
  std::ostringstream text;
  text << file.rdbuf();
  file.peek();  // shows an error that happened meanwhile
  if (file.bad()) throw IoError("read", path, errno);
  return std::move(text).str();
}

bool has_records(const watch::RunMetrics& metrics) {
  return !metrics.starts.empty() || !metrics.steps.empty() || !metrics.evals.empty() ||
         !metrics.ends.empty() || !metrics.events.empty();
}

void refuse_what_is_no_run(const watch::RunFolder& run) {
  std::error_code ignored;
  if (!fs::exists(run.path, ignored))
    throw NothingToReport(
        "the folder " + run.path +
        " does not exist; the folder of a run is expected, as `fsdp train --run DIR` makes it");
  if (!fs::is_directory(run.path, ignored))
    throw NothingToReport(run.path + " is a file; the folder of a run is expected");
  if (!fs::exists(run.metrics(), ignored))
    throw NothingToReport(
        run.path + " is no folder of a run: it has no metrics.jsonl. `fsdp train --run DIR` makes one");
}

}  // namespace

Run read_run(const std::string& folder) {
  const watch::RunFolder paths{folder};
  refuse_what_is_no_run(paths);
  Run run{
      .folder = folder, .metrics = watch::read_metrics(paths.metrics()), .now = watch::seconds_since_1970()};
  if (!has_records(run.metrics))
    throw NothingToReport(run.metrics.notes.empty()
                              ? paths.metrics() +
                                    " is empty: the run has not started to train yet. Try again once it has"
                              : paths.metrics() + " has no record of a run. " + run.metrics.notes.front());
  run.config = text_of(paths.config());
  return run;
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string partial = path + "." + std::to_string(::getpid()) + ".new";
  const auto fail = [&] {
    const int error = errno;
    ::unlink(partial.c_str());
    throw IoError("write", path, error);
  };
  errno = 0;
  std::ofstream file(partial, std::ios::binary);
  file << text;
  file.close();
  if (!file) fail();
  if (std::rename(partial.c_str(), path.c_str()) != 0) fail();
}

}  // namespace fsdp::report
