#include "trainer/watch/read_metrics.h"

#include <fsdp/error.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace fsdp::watch {

namespace {

// Notes beyond this number are counted only.
constexpr int64_t kMostNotes = 20;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  void line(const std::string& text, int64_t number, bool torn) {
    try {
      std::visit([this](auto&& one) { add(std::move(one)); }, parse_record(text));
    } catch (const std::runtime_error& error) {
      skip(path_ + ":" + std::to_string(number) + ": skipped: " +
           (torn ? "the last line is not complete; the process was killed, or is still writing"
                 : error.what()));
    }
  }

  RunMetrics result() {
    if (skipped_ > kMostNotes)
      metrics_.notes.push_back(path_ + ": " + std::to_string(skipped_ - kMostNotes) +
                               " more lines were skipped");
    return std::move(metrics_);
  }

 private:
  void add(StartRecord&& one) { metrics_.starts.push_back(std::move(one)); }
  void add(StepRecord&& one) { metrics_.steps.push_back(one); }
  void add(EvalRecord&& one) { metrics_.evals.push_back(one); }
  void add(CheckpointRecord&& one) { metrics_.checkpoints.push_back(std::move(one)); }
  void add(UnitsRecord&& one) { metrics_.units.push_back(std::move(one)); }
  void add(MemoryRecord&& one) { metrics_.memory.push_back(std::move(one)); }
  void add(EventRecord&& one) { metrics_.events.push_back({std::move(one), false}); }
  void add(EndRecord&& one) { metrics_.ends.push_back(std::move(one)); }

  void add(ResumeRecord&& one) {
    metrics_.superseded_steps += drop_after(one.step, metrics_.steps);
    drop_after(one.step, metrics_.evals);
    drop_after(one.step, metrics_.checkpoints);
    drop_after(one.step, metrics_.units);
    drop_after(one.step, metrics_.memory);
    for (PastEvent& past : metrics_.events) past.superseded |= past.event.step > one.step;
    metrics_.resumes.push_back(std::move(one));
  }

  template <typename T>
  int64_t drop_after(int64_t step, std::vector<T>& records) {
    return static_cast<int64_t>(std::erase_if(records, [step](const T& one) { return one.step > step; }));
  }

  void skip(std::string note) {
    if (++skipped_ <= kMostNotes) metrics_.notes.push_back(std::move(note));
  }

  const std::string& path_;
  RunMetrics metrics_;
  int64_t skipped_ = 0;
};

}  // namespace

RunMetrics parse_metrics(const std::string& text, const std::string& path) {
  Reader reader(path);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t found = text.find('\n', begin);
    const bool torn = found == std::string::npos;
    const size_t end = torn ? text.size() : found;
    ++number;
    if (end > begin) reader.line(text.substr(begin, end - begin), number, torn);
    begin = end + 1;
  }
  return reader.result();
}

RunMetrics read_metrics(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError("open", path, errno);
  std::ostringstream text;
  text << file.rdbuf();
  file.peek();  // shows an error that happened meanwhile
  if (file.bad()) throw IoError("read", path, errno);
  return parse_metrics(std::move(text).str(), path);
}

}  // namespace fsdp::watch
