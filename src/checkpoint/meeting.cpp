#include "checkpoint/meeting.h"

#include <fsdp/error.h>

#include "checkpoint/errors.h"
#include "comm/await.h"
#include "comm/heartbeat/heartbeat.h"
#include "launch/world_state.h"

namespace fsdp::detail {

Meeting::Meeting(const World& world, std::string doing, std::chrono::milliseconds timeout)
    : world_(world),
      doing_(std::move(doing)),
      prefix_("fsdp/meeting/" + std::to_string(world.state().meetings++) + "/"),
      timeout_(timeout),
      faults_before_(world.state().activity->faults_noted()) {}

std::string Meeting::key(int round, int rank) const {
  return prefix_ + std::to_string(round) + "/" + std::to_string(rank);
}

std::string Meeting::await(const std::string& key, int from) const {
  GroupInfo info;
  info.rank = world_.rank();
  info.size = world_.size();
  info.peers = world_.peers();
  info.store = world_.store();
  info.options.timeout = timeout_;
  info.activity = world_.state().activity;
  const auto heartbeat = heartbeat_of(world_);
  const bool training = std::this_thread::get_id() == training_thread_;
  if (training) info.heartbeat = heartbeat;
  heartbeat->begin_watching();
  const struct EndWatching {
    Heartbeat& heartbeat;
    ~EndWatching() { heartbeat.end_watching(); }
  } end{*heartbeat};
  return await_key(info, key, from, doing_, [&] { look_for_hung_ranks(); });
}

// See Note [Ranks that hang in a save].
void Meeting::look_for_hung_ranks() const {
  const auto heartbeat = heartbeat_of(world_);
  const std::string ended = prefix_ + "ended";
  if (world_.store()->check({ended})) {
    const auto bytes = world_.store()->get(ended);
    throw RendezvousError(std::string(bytes.begin(), bytes.end()));
  }
  if (const auto fault = world_.state().activity->fault_noted_after(faults_before_))
    give_up("a group of the ranks failed: " + fault->reason);
  const std::string seconds = std::to_string(heartbeat->timeout().count()) + " ms";
  if (const auto rank = heartbeat->lost())
    give_up(rank->name + " has given no sign of life for " + seconds + "; it is " + rank->words);
  if (std::this_thread::get_id() != training_thread_) return;
  if (const auto rank = heartbeat->overdue())
    give_up(rank->name + " did not come within " + seconds + "; it is " + rank->words);
}

void Meeting::give_up(const std::string& why) const {
  const std::string text = "while " + doing_ + ", " + why;
  world_.store()->set(prefix_ + "ended", std::vector<uint8_t>(text.begin(), text.end()));
  throw RendezvousError(text);
}

std::string Meeting::from_0(const std::string& mine) {
  const int round = round_++;
  if (world_.size() == 1) return mine;
  if (world_.rank() != 0) return await(key(round, 0), 0);
  given_.push_back(key(round, 0));
  world_.store()->set(given_.back(), std::vector<uint8_t>(mine.begin(), mine.end()));
  return mine;
}

std::vector<std::string> Meeting::to_0(const std::string& mine) {
  const int round = round_++;
  if (world_.rank() != 0) {
    world_.store()->set(key(round, world_.rank()), std::vector<uint8_t>(mine.begin(), mine.end()));
    return {};
  }
  std::vector<std::string> texts{mine};
  for (int rank = 1; rank < world_.size(); ++rank) {
    texts.push_back(await(key(round, rank), rank));
    world_.store()->deleteKey(key(round, rank));
  }
  for (const std::string& read : given_) world_.store()->deleteKey(read);
  given_.clear();
  return texts;
}

void Meeting::agree(const std::string& my_error) {
  int first = -1;
  const std::vector<std::string> all = to_0(my_error);
  for (size_t rank = all.size(); rank-- > 0;)
    if (!all[rank].empty()) first = static_cast<int>(rank);
  const std::string verdict =
      from_0(first < 0 ? "" : std::to_string(first) + " " + all[static_cast<size_t>(first)]);
  if (verdict.empty()) return;
  end();
  const size_t space = verdict.find(' ');
  throw_error(verdict.substr(space + 1), world_.size() > 1 ? std::stoi(verdict.substr(0, space)) : -1);
}

}  // namespace fsdp::detail
