#include "launch/activity.h"

#include <algorithm>
#include <utility>

namespace fsdp::detail {

void Activity::set(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
  show();
}

std::string Activity::get() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

std::string Activity::of_peer(int world_rank) const {
  const std::lock_guard lock(mutex_);
  for (const ActivityBoard* board : boards_)
    if (std::string text = board->activity_of(world_rank); !text.empty()) return text;
  return "";
}

void Activity::note_thread() {
  if (thread_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return;
  const std::lock_guard lock(mutex_);
  note_thread_locked();
}

void Activity::note_thread_locked() {
  const std::thread::id none, me = std::this_thread::get_id();
  if (thread_.load() == none) thread_ = me;
  if (several_threads_ || thread_.load() == me) return;
  several_threads_ = true;
  show();
}

void Activity::begin_meeting(std::string text) {
  const std::lock_guard lock(mutex_);
  note_thread_locked();
  before_meeting_ = std::exchange(text_, std::move(text));
  ++meetings_;
  meeting_thread_ = std::this_thread::get_id();
  failed_before_.clear();
  for (const ActivityBoard* board : boards_)
    if (board->fault()) failed_before_.push_back(board);
  show();
}

void Activity::end_meeting() {
  const std::lock_guard lock(mutex_);
  text_ = std::move(before_meeting_);
  ++meetings_;
  show();
}

std::optional<GroupFault> Activity::new_fault() const {
  const std::lock_guard lock(mutex_);
  if (several_threads_ || meetings_ % 2 == 0 || meeting_thread_ != std::this_thread::get_id())
    return std::nullopt;
  for (const ActivityBoard* board : boards_) {
    const bool old = std::find(failed_before_.begin(), failed_before_.end(), board) != failed_before_.end();
    if (auto fault = old ? std::nullopt : board->fault()) return fault;
  }
  return std::nullopt;
}

void Activity::note_fault(GroupFault fault) {
  if (fault.kind != CommFault::timeout && fault.kind != CommFault::backend) return;
  const std::lock_guard lock(mutex_);
  last_fault_ = std::move(fault);
  ++faults_noted_;
}

int Activity::faults_noted() const {
  const std::lock_guard lock(mutex_);
  return faults_noted_;
}

std::optional<GroupFault> Activity::fault_noted_after(int before) const {
  const std::lock_guard lock(mutex_);
  return faults_noted_ > before ? std::optional(last_fault_) : std::nullopt;
}

void Activity::add(ActivityBoard& board) {
  const std::lock_guard lock(mutex_);
  boards_.push_back(&board);
  board.show(text_, meetings_, several_threads_);
}

void Activity::remove(ActivityBoard& board) {
  const std::lock_guard lock(mutex_);
  std::erase(boards_, &board);
}

void Activity::show() const {
  for (ActivityBoard* board : boards_) board->show(text_, meetings_, several_threads_);
}

std::string ordinal(int64_t number) {
  const int64_t last = number % 10;
  const bool teen = number % 100 / 10 == 1;
  const char* end = teen ? "th" : last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th";
  return std::to_string(number) + end;
}

}  // namespace fsdp::detail
