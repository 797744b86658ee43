#include "comm/gloo/watch.h"

#include <sstream>
#include <thread>

#include "comm/await.h"
#include "comm/gloo/watch_loop.h"

namespace fsdp::detail {

namespace {

constexpr Milliseconds kGrace{5000};  // for the thread to find the culprit after the deadline

// gloo adds the time to the clock: not too much of it.
Milliseconds time_for_gloo(Clock::time_point deadline) {
  constexpr Milliseconds kLongest = std::chrono::hours(24 * 365);
  const auto now = Clock::now();
  if (deadline - now > kLongest) return kLongest;
  const auto left = std::chrono::duration_cast<Milliseconds>(deadline - now);
  return std::max(left, Milliseconds{0}) + kGrace;
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

std::string GlooFault::to_text() const {
  return std::to_string(static_cast<int>(kind)) + " " + std::to_string(static_cast<int>(cause)) + " " +
         std::to_string(culprit) + " " + reason;
}

GlooFault GlooFault::from_text(const std::string& text) {
  std::istringstream in(text);
  int kind = 0;
  int cause = 0;
  GlooFault fault;
  in >> kind >> cause >> fault.culprit;
  std::getline(in >> std::ws, fault.reason, '\0');
  fault.kind = static_cast<CommFault>(kind);
  fault.cause = static_cast<AbortCause>(cause);
  return fault;
}

GlooWatch::GlooWatch(const GroupInfo& info) : info_(info), loop_(std::make_shared<Loop>(info)) {
  if (info.size > 1) std::thread([loop = loop_] { loop->run(); }).detach();
}

GlooWatch::~GlooWatch() {
  if (info_.size == 1) return;
  if (!faulted() && !left_note_)
    leaving(std::uncaught_exceptions() > 0
                ? "it left the group while an exception of its own was on its way out"
                : kClosedCommunicator);
  (void)loop_->stop();
}

void GlooWatch::wait(const GlooMessage& message, const GlooOperation& operation, Clock::time_point deadline) {
  throw_if_faulted(operation);
  loop_->begin({.work = message.work,
                .peer = message.peer,
                .operation = operation,
                .begun_at = Clock::now(),
                .deadline = deadline,
                .closed = {}});
  bool done = false;
  std::string words;
  try {
    done = message.work->wait(time_for_gloo(deadline));
  } catch (const std::exception& error) {
    words = error.what();
  }
  if (!done && !faulted()) {
    if (Clock::now() > deadline)
      loop_->report_late_alone();
    else
      loop_->find_fault(words);
  }
  loop_->end();
  if (!done) throw_fault(operation);
}

void GlooWatch::fail(int peer, const GlooOperation& operation, const std::string& words) {
  throw_if_faulted(operation);
  loop_->begin({.work = {},
                .peer = peer,
                .operation = operation,
                .begun_at = Clock::now(),
                .deadline = Clock::time_point::max(),
                .closed = {}});
  loop_->find_fault(words);
  loop_->end();
  throw_fault(operation);
}

void GlooWatch::throw_if_faulted(const GlooOperation& operation) const {
  if (faulted()) throw_fault(operation);
}

bool GlooWatch::faulted() const { return loop_->fault().has_value(); }

void GlooWatch::throw_fault(const GlooOperation& operation) const {
  const GlooFault fault =
      loop_->fault().value_or(GlooFault{.reason = "gloo ended a wait for no known reason"});
  const bool known = fault.culprit >= 0;
  const int culprit = known ? world_rank(info_, fault.culprit) : -1;
  const std::string name = known ? name_of(info_, fault.culprit) : "";
  if (known) info_.cause->note({.culprit = culprit, .name = name, .reason = fault.reason});
  throw CommError({.fault = fault.kind,
                   .rank = world_rank(info_, info_.rank),
                   .culprit = culprit,
                   .op = operation.info.op,
                   .label = operation.info.label,
                   .sequence = operation.sequence,
                   .elapsed = elapsed_since(operation.issued_at),
                   .reason = known ? name + ": " + fault.reason : fault.reason});
}

void GlooWatch::abort(AbortCause cause, const std::string& reason) { loop_->abort(cause, reason); }

AbortCause GlooWatch::abort_cause() const {
  const auto fault = loop_->fault();
  return fault ? fault->cause : AbortCause::caller;
}

// Writing waits for no answer. A rank that leaves because of a fault of another group passes it on.
void GlooWatch::leaving(const std::string& why) {
  GlooFault left{.kind = CommFault::peer_left, .culprit = info_.rank, .reason = why};
  const FirstCause::Fault first = info_.cause->get();
  if (!why.empty() && first.culprit >= 0)
    left.reason = "it left the group after this: " + first.name + ": " + first.reason;
  if (why.empty() && !left_note_) return;
  left_note_ = !why.empty();
  try {
    info_.store->set(gloo_left_key(info_.rank), bytes_of(why.empty() ? "" : left.to_text()));
  } catch (const std::exception&) {
    // The store ended with its host; peers see the connections close.
  }
}

}  // namespace fsdp::detail
