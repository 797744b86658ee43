#include "app/launch/supervisor.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "app/launch/environment.h"
#include "app/launch/gang.h"
#include "app/launch/ready_fds.h"
#include "app/launch/signals.h"

namespace fsdp::launch {

namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

std::string seconds_since(Time since) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - since).count()) +
         " s";
}

// The ranks from their start to the last one's end. See Note [Ending ranks].
class Watch {
 public:
  Watch(const Job& job, const Tell& tell, Elsewhere* elsewhere)
      : job_(job), tell_(tell), elsewhere_(elsewhere), gang_(job, signals_.mask_before(), console_) {
    outcome_.world_size = job.world_size();
    outcome_.host = host_name();
    readable_.add(signals_.fd(), kSignal);
    if (elsewhere_ != nullptr && elsewhere_->fd() >= 0) readable_.add(elsewhere_->fd(), kElsewhere);
    readable_.add(gang_.started_fd(), kStarted);
    for (int i = 0; i < gang_.size(); ++i) {
      gang_.start(i);
      readable_.add(gang_.pidfd(i), i);
      for (const Stream stream : {Stream::out, Stream::err})
        if (gang_.pipes(i).exist()) readable_.add(gang_.pipes(i).read_end(stream), output_tag(i, stream));
    }
    wait_begins(Clock::now());
  }

  Outcome run() {
    if (elsewhere_ != nullptr) handle(kElsewhere);  // a word that has come before can wake nobody
    while (gang_.running() > 0) {
      const std::vector<int> tags = readable_.wait(next_step());
      for (const int tag : tags)
        if (tag > kOutput) handle(tag);
      for (const int tag : tags)
        if (tag <= kOutput) relay(tag);  // later: a failure is older than what other ranks say about it
      serve_readers();
      const Time now = Clock::now();
      if (failed_at_) end_the_rest(now);
      if (gang_.running() > 0 && speak_at_ && now >= *speak_at_) say_what_we_wait_for(now);
    }
    finish_console();
    while (const int number = signals_.next()) handle_signal(number);
    outcome_.late_errors = console_.held();
    return std::move(outcome_);
  }

 private:
  static constexpr int kSignal = -1;
  static constexpr int kStarted = -2;
  static constexpr int kElsewhere = -3;
  static constexpr int kReader = -4;  // of stdout, and -5: of stderr
  static constexpr int kOutput = -6;  // and below

  static int output_tag(int index, Stream stream) { return kOutput - 2 * index - static_cast<int>(stream); }
  void relay(int tag);
  void serve_readers();
  void finish_console();
  void handle(int tag);
  void handle_signal(int number);
  void handle_word(Elsewhere::Word word);
  void handle_end(int index);
  // The ranks were asked to save and leave.
  bool are_asked() const { return interrupted_at_ || leaving_; }
  void begin_to_end(Time now);
  void end_the_rest(Time now);
  Patience::Time time_alone() const;
  void wait_begins(Time now);
  void say_what_we_wait_for(Time now);
  std::string the_running() const;
  std::optional<Time> next_step() const;
  template <typename Fn>
  void for_running(Fn fn) {
    for (int i = 0; i < gang_.size(); ++i)
      if (!gang_.ended(i)) fn(i);
  }

  const Job& job_;
  const Tell& tell_;
  Elsewhere* elsewhere_;
  SignalEvents signals_;
  Console console_;
  Gang gang_;
  ReadyFds readable_;
  std::set<int> over_;                  // tags of outputs from which no more can come
  std::array<bool, 2> reader_waits_{};  // by stream: it is slow, and is watched
  bool relays_ = true;
  Outcome outcome_;
  std::optional<Time> failed_at_;  // the others are being ended since
  std::optional<Time> asked_at_;   // SIGTERM was sent because of that
  std::optional<Time> interrupted_at_;
  bool leaving_ = false;  // the ranks were asked to, because of other nodes
  bool stopped_killed_ = false;
  bool all_killed_ = false;
  Time waiting_since_;
  std::optional<Time> speak_at_;  // set during waits that the user is told of
};

void Watch::handle(int tag) {
  if (tag == kSignal) {
    while (const int number = signals_.next()) handle_signal(number);
  } else if (tag == kElsewhere) {
    for (auto word = elsewhere_->next(); word != Elsewhere::Word::none; word = elsewhere_->next())
      handle_word(word);
  } else if (tag == kStarted) {
    gang_.check_started();
    readable_.remove(gang_.started_fd());
    if (!failed_at_ && !interrupted_at_ && !leaving_) speak_at_.reset();
  } else if (tag >= 0) {
    handle_end(tag);
  }
}

void Watch::relay(int tag) {
  const int index = (kOutput - tag) / 2;
  const Stream stream = (kOutput - tag) % 2 == 0 ? Stream::out : Stream::err;
  if (gang_.ended(index)) return;
  RankPipes& pipes = gang_.pipes(index);
  if (!pipes.pump(stream)) {
    readable_.remove(pipes.read_end(stream));
    over_.insert(tag);
  }
}

// Goes on with text for slow readers. While too much waits, nothing is read from the ranks.
void Watch::serve_readers() {
  console_.pump();
  for (const Stream stream : {Stream::out, Stream::err}) {
    bool& waits = reader_waits_[static_cast<size_t>(stream)];
    const int fd = console_.waits_for(stream);
    const int tag = kReader - static_cast<int>(stream);
    if (fd >= 0 && !waits) waits = readable_.add_writer(fd, tag);
    if (fd >= 0 || !waits) continue;
    readable_.remove(stream == Stream::out ? STDOUT_FILENO : STDERR_FILENO);
    waits = false;
  }
  if (relays_ != console_.is_crowded()) return;
  relays_ = !relays_;
  for (int i = 0; i < gang_.size(); ++i) {
    if (gang_.ended(i) || !gang_.pipes(i).exist()) continue;
    for (const Stream stream : {Stream::out, Stream::err}) {
      const int tag = output_tag(i, stream);
      if (over_.contains(tag)) continue;
      if (relays_)
        readable_.add(gang_.pipes(i).read_end(stream), tag);
      else
        readable_.remove(gang_.pipes(i).read_end(stream));
    }
  }
}

// A reader that is stuck must not keep anybody from learning how the ranks ended.
void Watch::finish_console() {
  std::vector<int> wakers{signals_.fd()};
  if (elsewhere_ != nullptr) wakers.push_back(elsewhere_->fd());
  console_.finish(wakers);
}

void Watch::handle_signal(int number) {
  const Time now = Clock::now();
  if (interrupted_at_ && now < *interrupted_at_ + job_.patience.repeat) return;
  if (!interrupted_at_) {
    interrupted_at_ = now;
    console_.hurry();  // ranks that cannot write cannot save
    outcome_.interrupted_by = number;
    if (gang_.running() == 0) return;
    if (failed_at_ && !asked_at_) asked_at_ = now;
    if (!leaving_) for_running([&](int i) { gang_.ask(i); });  // a second SIGTERM would end the save
    wait_begins(now);
    tell_(signal_name(number) + ": asked " + the_running() +
          " to finish the step, save and leave. A second signal kills them");
  } else if (gang_.running() > 0) {
    outcome_.abandoned = true;
    tell_(signal_name(number) + " again: killed " + the_running());
    for_running([&](int i) { gang_.kill(i, EndKind::killed); });
  }
}

void Watch::handle_word(Elsewhere::Word word) {
  const Time now = Clock::now();
  if (failed_at_) return;
  if (word == Elsewhere::Word::failed) {
    begin_to_end(now);
  } else if (!are_asked()) {
    leaving_ = true;
    console_.hurry();
    if (gang_.running() == 0) return;
    for_running([&](int i) { gang_.ask(i); });
    wait_begins(now);
    tell_(elsewhere_->why() + ": asked " + the_running() + " to finish the step, save and leave");
  }
}

// A rank has failed, here or elsewhere.
void Watch::begin_to_end(Time now) {
  failed_at_ = now;
  console_.hurry();
  console_.hold_errors();
  wait_begins(now);
}

void Watch::handle_end(int index) {
  readable_.remove(gang_.pidfd(index));
  outcome_.ends.push_back(gang_.reap(index));
  const RankEnd& end = outcome_.ends.back();
  const bool as_asked = are_asked() && (end.kind != EndKind::own || end.exit_code == kRequeue);
  if (!end.failed() || failed_at_ || as_asked) return;
  begin_to_end(Clock::now());
  if (elsewhere_ != nullptr && end.exit_code != kRequeue) elsewhere_->failed_here();
}

void Watch::end_the_rest(Time now) {
  const Patience& patience = job_.patience;
  if (!stopped_killed_ && now >= *failed_at_ + patience.stopped) {
    stopped_killed_ = true;
    for_running([&](int i) {
      if (gang_.is_stopped(i)) gang_.kill(i, EndKind::stopped);
    });
  }
  if (!asked_at_ && now >= *failed_at_ + time_alone()) {
    asked_at_ = now;
    if (!are_asked()) for_running([&](int i) { gang_.ask(i); });  // a second SIGTERM would end a save
  }
  if (!all_killed_ && asked_at_ && now >= *asked_at_ + patience.term) {
    all_killed_ = true;
    for_running([&](int i) { gang_.kill(i, EndKind::killed); });
  }
}

// Ranks that save have more time, whether the launcher asked them or each was asked by itself.
Patience::Time Watch::time_alone() const {
  return are_asked() || outcome_.asks_for_requeue() ? job_.patience.saved : job_.patience.alone;
}

void Watch::wait_begins(Time now) {
  waiting_since_ = now;
  speak_at_ = now + job_.patience.first_word;
}

std::string Watch::the_running() const {
  std::vector<int> running, stopped;
  for (int i = 0; i < gang_.size(); ++i) {
    if (gang_.ended(i)) continue;
    running.push_back(job_.first_rank() + i);
    if (gang_.is_stopped(i)) stopped.push_back(running.back());
  }
  return name_ranks(running) + (stopped.empty() ? "" : " (stopped by SIGSTOP: " + name_ranks(stopped) + ")");
}

void Watch::say_what_we_wait_for(Time now) {
  speak_at_ = now + job_.patience.next_word;
  const std::string since = " since " + seconds_since(waiting_since_);
  if (are_asked() && !failed_at_) return tell_("waiting for " + the_running() + " to save and leave" + since);
  if (!failed_at_) return tell_("waiting for " + job_.argv[0] + " to be loaded" + since);
  const RankEnd* cause = outcome_.cause();
  const std::string what = cause == nullptr ? "another node has ended or lost its ranks"
                                            : "rank " + std::to_string(cause->rank) + " " + describe(*cause);
  tell_(what + "; waiting for " + the_running() + " to end" + since +
        (asked_at_ || are_asked() ? ", SIGTERM was sent" : ""));
}

std::optional<Time> Watch::next_step() const {
  std::optional<Time> next = speak_at_;
  const auto consider = [&](bool pending, Time time) {
    if (pending && (!next || time < *next)) next = time;
  };
  if (!failed_at_) return next;
  consider(!stopped_killed_, *failed_at_ + job_.patience.stopped);
  consider(!asked_at_, *failed_at_ + time_alone());
  if (asked_at_) consider(!all_killed_, *asked_at_ + job_.patience.term);
  return next;
}

}  // namespace

void tell_on_stderr(const std::string& line) { write_soon(Stream::err, "fsdp: " + line + "\n"); }

Outcome run_ranks(const Job& job, const Tell& tell, Elsewhere* elsewhere) {
  Watch watch(job, tell, elsewhere);
  return watch.run();
}

}  // namespace fsdp::launch
