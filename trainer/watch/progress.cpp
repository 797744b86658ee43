#include "trainer/watch/progress.h"

#include <algorithm>
#include <array>
#include <ctime>

namespace fsdp::watch {

namespace {

using std::chrono::duration_cast;
using std::chrono::seconds;

constexpr const char* kClear = "\r\033[K";

std::string time_of_day(seconds ago) {
  const std::time_t then = std::time(nullptr) - ago.count();
  std::tm local{};
  ::localtime_r(&then, &local);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%H:%M:%S", &local);
  return text.data();
}

std::string printable(std::string text) {
  for (char& c : text)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  return text;
}

}  // namespace

Progress::Progress(ProgressOptions options) : options_(options) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    clear_line();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Progress::step(const ProgressState& state) {
  const std::lock_guard lock(mutex_);
  const bool first = !has_last_, last = state.steps > 0 && state.step >= state.steps;
  last_ = state;
  has_last_ = true;
  if (!options_.terminal.live) {
    const int64_t every = std::max<int64_t>(options_.every_steps, 1);
    if (first || last || state.step % every == 0) print(plain_line(state));
    return;
  }
  const auto now = Clock::now();
  if (!last && line_shown_ && now - drawn_ < options_.redraw) return;
  drawn_ = now;
  draw(live_line(state, {width(), options_.terminal.utf8, options_.terminal.color}));
}

void Progress::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const bool redraw = line_shown_;
  clear_line();
  print(printable(text));
  if (redraw && has_last_) draw(live_line(last_, {width(), options_.terminal.utf8, options_.terminal.color}));
}

void Progress::keep_line() {
  const std::lock_guard lock(mutex_);
  if (!line_shown_) return;
  write_or_drop(options_.fd, "\n");
  line_shown_ = false;
}

Progress::Wait Progress::waiting(std::string what, std::chrono::milliseconds already) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now(), begun = now - already;
  waits_.push_back({next_id_, printable(std::move(what)), time_of_day(duration_cast<seconds>(already)), begun,
                    begun + options_.patience, false});
  if (!thread_.joinable())
    thread_ = std::thread([this] { watch_waits(); });
  else if (thread_sleeps_ || already >= options_.patience)
    changed_.notify_all();
  return Wait(this, next_id_++);
}

void Progress::Wait::done() {
  if (progress_ != nullptr) progress_->done(id_);
  progress_ = nullptr;
}

void Progress::done(int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(waits_.begin(), waits_.end(), [id](const Pending& one) { return one.id == id; });
  const auto took = duration_cast<seconds>(Clock::now() - found->begun).count();
  if (found->shown && !options_.terminal.live)
    print("waited " + std::to_string(took) + " s for " + found->what);
  else if (found->shown && has_last_)
    draw(live_line(last_, {width(), options_.terminal.utf8, options_.terminal.color}));
  else if (found->shown)
    clear_line();
  waits_.erase(found);
}

// The thread sleeps until the next wait is due, and without waits until there is one. It is not woken for
// waits that begin meanwhile: those are due later.
void Progress::watch_waits() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto now = Clock::now();
    for (Pending& one : waits_)
      if (one.next <= now) show(one, now);
    auto next = Clock::time_point::max();
    for (const Pending& one : waits_) next = std::min(next, one.next);
    thread_sleeps_ = waits_.empty();
    if (waits_.empty())
      changed_.wait(lock);
    else
      changed_.wait_until(lock, next);
  }
}

void Progress::show(Pending& wait, Clock::time_point now) {
  const auto took = now - wait.begun;
  // A line that is redrawn counts the seconds; a log gets a line after 2, 4, 8, ... seconds and each minute.
  wait.next = now + (options_.terminal.live ? Clock::duration(seconds(1))
                                            : std::min<Clock::duration>(took, seconds(60)));
  if (wait.id != waits_.back().id) return;
  wait.shown = true;
  const double waited = std::chrono::duration<double>(took).count();
  if (options_.terminal.live)
    draw(waiting_line(wait.what, wait.since, waited, width()));
  else
    print(waiting_line(wait.what, wait.since, waited, 1 << 20));
}

void Progress::draw(const std::string& line) {
  write_or_drop(options_.fd, kClear + line);
  line_shown_ = true;
}

void Progress::clear_line() {
  if (line_shown_) write_or_drop(options_.fd, kClear);
  line_shown_ = false;
}

void Progress::print(const std::string& line) { write_or_drop(options_.fd, line + "\n"); }

// A line that fills the last column would make some terminals go on to the next line.
int Progress::width() const {
  const int columns = options_.terminal.width > 0 ? options_.terminal.width : terminal_width(options_.fd);
  return std::max(columns - 1, 1);
}

}  // namespace fsdp::watch
