#include "comm/heartbeat/heartbeat.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <set>

#include "base/log.h"
#include "comm/heartbeat/pulse.h"

namespace fsdp {

namespace detail {

namespace {

// Ranks that are threads of one process stop together.
bool are_processes(const GroupInfo& world) {
  std::set<std::pair<std::string, int64_t>> seen;
  return std::all_of(world.peers.begin(), world.peers.end(),
                     [&](const Peer& peer) { return seen.emplace(peer.host_id, peer.pid).second; });
}

}  // namespace

Milliseconds WaitOptions::timeout() const {
  const int64_t set = timeout_ms;
  return set > 0 ? Milliseconds(set) : default_timeout();
}

Heartbeat::~Heartbeat() {
  if (!pulse_) return;
  if (owner_.is_this())
    pulse_->stop();
  else  // Note [Forked children]
    (void)std::make_unique<std::shared_ptr<Pulse>>(std::move(pulse_)).release();
}

void Heartbeat::start(const GroupInfo& world) {
  if (pulse_ || world.size == 1 || !are_processes(world)) return;
  try {
    pulse_ = std::make_shared<Pulse>(world, options_);
    Pulse::start(pulse_);
  } catch (const RendezvousError&) {
    throw;
  } catch (const Error& error) {
    // The rank that has the memory is gone, or nobody may open it: the group that is made next says so.
    log_debug([&] { return std::string("no heartbeats: ") + error.what(); });
  }
}

void Heartbeat::set_timeout(Milliseconds timeout) { options_->timeout_ms = timeout.count(); }
Milliseconds Heartbeat::timeout() const { return options_->timeout(); }

void Heartbeat::on_waiting(ShowWait show) {
  const std::lock_guard lock(options_->mutex);
  options_->show = std::move(show);
}

void Heartbeat::note_step(int64_t step) {
  if (!pulse_) return;
  pulse_->beats_.own_page().step = step + 1;
  const std::lock_guard lock(pulse_->mutex_);
  pulse_->told_steps_ = true;
  pulse_->patience_.begin_step(Clock::now());
}

void Heartbeat::note_backward() {
  if (!pulse_) return;
  const std::lock_guard lock(pulse_->mutex_);
  if (!pulse_->told_steps_) pulse_->patience_.begin_step(Clock::now());
}

void Heartbeat::note_collective(const char* op, std::string_view label) {
  if (pulse_) pulse_->beats_.own_page().note_collective(op, label);
}

void Heartbeat::begin_wait(const std::vector<Peer>& peers) {
  if (!pulse_) return;
  const std::lock_guard lock(pulse_->mutex_);
  if (pulse_->depth_++ > 0) return;
  pulse_->waits_in_.clear();
  for (const Peer& peer : peers) pulse_->waits_in_.push_back(peer.rank);
  pulse_->beats_.own_page().left = 0;
  pulse_->beats_.own_page().waits.fetch_add(1);
}

void Heartbeat::end_wait(bool failed) {
  if (!pulse_) return;
  const std::lock_guard lock(pulse_->mutex_);
  if (--pulse_->depth_ > 0) return;
  if (failed) pulse_->fail();
  pulse_->beats_.own_page().waits.fetch_add(1);
  if (!pulse_->late_) return;
  pulse_->look_now_ = true;
  pulse_->wake_.notify_all();
}

void Heartbeat::begin_watching() {
  if (!pulse_) return;
  const std::lock_guard lock(pulse_->mutex_);
  ++pulse_->watchers_;
}

void Heartbeat::end_watching() {
  if (!pulse_) return;
  const std::lock_guard lock(pulse_->mutex_);
  --pulse_->watchers_;
}

std::optional<LateRank> Heartbeat::overdue() const {
  if (!pulse_) return std::nullopt;
  const std::lock_guard lock(pulse_->mutex_);
  return pulse_->overdue_;
}

std::optional<LateRank> Heartbeat::lost() const {
  if (!pulse_) return std::nullopt;
  const std::lock_guard lock(pulse_->mutex_);
  return pulse_->lost_;
}

std::string Heartbeat::waiting_for() const {
  if (!pulse_) return "";
  const std::lock_guard lock(pulse_->mutex_);
  return pulse_->late_ ? pulse_->late_->text() : "";
}

void Heartbeat::complete(const GroupInfo& group, CommError::Details& details) {
  if (pulse_) pulse_->complete(group, details);
}

std::shared_ptr<Heartbeat> heartbeat_of(const World& world) {
  WorldState& state = world.state();
  const std::lock_guard lock(state.heartbeat_mutex);
  if (!state.heartbeat) state.heartbeat = std::make_shared<Heartbeat>();
  return state.heartbeat;
}

WaitScope::WaitScope(Heartbeat* heartbeat, const std::vector<Peer>& peers)
    : heartbeat_(std::uncaught_exceptions() == 0 ? heartbeat : nullptr) {
  if (heartbeat_ != nullptr) heartbeat_->begin_wait(peers);
}

WaitScope::~WaitScope() {
  if (heartbeat_ != nullptr) heartbeat_->end_wait(std::uncaught_exceptions() > 0);
}

void complete_fault(const GroupInfo& group, CommError::Details& details) {
  if (group.heartbeat) group.heartbeat->complete(group, details);
  group.activity->note_fault({.kind = details.fault, .culprit = details.culprit, .reason = details.reason});
}

}  // namespace detail

void note_step(const World& world, int64_t step) { detail::heartbeat_of(world)->note_step(step); }

void set_wait_timeout(const World& world, std::chrono::milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "fsdp: set_wait_timeout of ", timeout.count(), " ms; it must be positive");
  detail::heartbeat_of(world)->set_timeout(timeout);
}

void on_waiting(const World& world, ShowWait show) {
  detail::heartbeat_of(world)->on_waiting(std::move(show));
}

std::string waiting_for(const World& world) { return detail::heartbeat_of(world)->waiting_for(); }

}  // namespace fsdp
