#include "comm/shared/group.h"

#include <exception>
#include <thread>

#include "comm/heartbeat/wait_words.h"
#include "comm/shared/ops.h"

namespace fsdp::detail {

namespace {

constexpr Milliseconds kDropPatience{1000};

std::vector<int> world_ranks(const GroupInfo& info) {
  std::vector<int> ranks;
  for (const Peer& peer : info.peers) ranks.push_back(peer.rank);
  return ranks;
}

}  // namespace

RoundOp context_of(OpInfo info) {
  RoundOp context;
  context.info = std::move(info);
  return context;
}

class SharedGroup::CollectiveWork final : public PendingWork {
 public:
  CollectiveWork(SharedGroup& group, RoundOpPtr op) : group_(group), op_(std::move(op)) {}

  void wait(std::chrono::milliseconds timeout, bool /*blocking*/) override {
    group_.named([&] { group_.rounds_.complete(op_, deadline_after(timeout)); });
  }
  bool drop() override {
    group_.drop([this] { return op_->complete(); });
    return true;
  }

 private:
  SharedGroup& group_;
  RoundOpPtr op_;
};

class SharedGroup::MessageWork final : public PendingWork {
 public:
  MessageWork(SharedGroup& group, MessagePtr message, OpInfo info)
      : group_(group), message_(std::move(message)), info_(std::move(info)), started_(Clock::now()) {}

  void wait(std::chrono::milliseconds timeout, bool /*blocking*/) override {
    group_.named([&] { group_.rounds_.wait_message(*message_, info_, started_, deadline_after(timeout)); });
  }
  bool drop() override {
    group_.drop([this] { return message_->complete; });
    return true;
  }

 private:
  SharedGroup& group_;
  MessagePtr message_;
  OpInfo info_;
  Clock::time_point started_;
};

SharedGroup::SharedGroup(const GroupInfo& info, ControlView view, std::unique_ptr<Liveness> liveness)
    : info_(info),
      gate_(std::move(view), info.rank, info.ranks_on_host, std::move(liveness), world_ranks(info)),
      messages_(gate_),
      rounds_(gate_, messages_) {
  rounds_.on_look([this] { look_elsewhere(); });
  info_.activity->add(*this);
}

SharedGroup::~SharedGroup() { info_.activity->remove(*this); }

std::string SharedGroup::activity_of(int world_rank) const {
  for (int r = 0; r < info_.size; ++r)
    if (gate_.world_rank(r) == world_rank) return gate_.activity_text(r);
  return "";
}

void SharedGroup::join(const char* backend) {
  const auto until = deadline();
  const RoundOp context = context_of({"join", backend});
  for (int r = 0; r < info_.size; ++r) {
    while (view().page(r).state.load() == static_cast<uint32_t>(RankState::absent)) {
      gate_.look_for_dead();
      throw_if_faulted(context);
      if (Clock::now() > until) {
        const std::string state = process_state(info_.peers[static_cast<size_t>(r)].pid);
        throw RendezvousError(name_of(info_, r) + " did not join the group within " +
                              std::to_string(info_.options.timeout.count()) + " ms" +
                              (state.empty() ? "" : "; its process is " + state));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  run_now(issue(make_barrier_op(), 0, at::kByte, 0, {"join", backend}, {}));
}

void SharedGroup::leave() {
  note_why();
  gate_.leave(rounds_.idle() && !messages_.pending());
}

void SharedGroup::note_leaving(std::string_view why) {
  if (why.empty() && gate_.others_miss_this()) return;
  gate_.note(why.empty() ? "" : "it left the group: " + std::string(why), info_.rank);
}

// A rank that has seen another's fault, in another group, passes it on.
void SharedGroup::give_up(std::string_view why) {
  if (gate_.faulted()) return;
  if (info_.cause->get().culprit >= 0)
    note_why();
  else
    gate_.note(why, info_.rank);
  gate_.give_up();
}

// For a rank that noted no reason itself: it leaves because of an exception, its own or one from another
// group.
void SharedGroup::note_why() {
  if (gate_.noted(info_.rank)) return;
  const FirstCause::Fault first = info_.cause->get();
  const std::string me = "rank " + std::to_string(world_rank(info_, info_.rank));
  for (int r = 0; r < info_.size; ++r)
    if (world_rank(info_, r) == first.culprit)
      return gate_.note(first.reason + " (told by " + me + ", which left after it)", r);
  if (first.culprit >= 0)
    return gate_.note("it left the group after this: " + first.name + ": " + first.reason, info_.rank);
  if (std::uncaught_exceptions() > 0)
    gate_.note("it left the group while an exception of its own was on its way out", info_.rank);
}

WorkPtr SharedGroup::issue(RoundOpPtr op, int64_t elements, at::ScalarType type, int argument, OpInfo info,
                           std::vector<at::Tensor> tensors) {
  op->elements = static_cast<uint64_t>(elements);
  op->dtype = to_dtype(type);
  op->argument = argument;
  op->info = std::move(info);
  op->tensors = std::move(tensors);
  named([&] { rounds_.issue(op, deadline()); });
  return std::make_shared<CollectiveWork>(*this, std::move(op));
}

WorkPtr SharedGroup::message(const at::Tensor& tensor, int peer, bool sending, const OpInfo& info) {
  throw_if_faulted(context_of(info));
  return std::make_shared<MessageWork>(*this, messages_.post(tensor, peer, sending, info.label), info);
}

std::optional<GroupFault> SharedGroup::fault() const {
  if (!gate_.faulted()) return std::nullopt;
  const Fault fault = gate_.fault();
  return GroupFault{.kind = static_cast<CommFault>(fault.kind - 1),
                    .culprit = gate_.world_rank(fault.culprit),
                    .reason = gate_.fault_reason()};
}

// In a meeting, a fault of another shared group ends this wait too.
void SharedGroup::look_elsewhere() {
  const auto found = info_.activity->new_fault();
  if (!found) return;
  int culprit = info_.rank;
  for (int r = 0; r < info_.size; ++r)
    if (gate_.world_rank(r) == found->culprit) culprit = r;
  gate_.report(found->kind, culprit, found->reason);
}

// Work that stays in flight uses memory that its owner has dropped. So the others get a short time to
// complete it; after that this rank may only leave the group.
void SharedGroup::drop(const std::function<bool()>& complete) {
  const auto until = Clock::now() + kDropPatience;
  try {
    while (!abandoned_ && !complete() && !gate_.faulted()) {
      rounds_.move_on();
      abandoned_ = Clock::now() > until;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (const std::exception&) {
    // The group has failed; its next call throws the reason.
  }
}

void SharedGroup::throw_named(const CommError& error) const {
  CommError::Details details = error.details();
  const std::string name = name_of(info_, details.culprit);
  details.activity = gate_.activity(info_.rank);
  details.rank = world_rank(info_, details.rank);
  details.culprit = world_rank(info_, details.culprit);
  info_.cause->note({.culprit = details.culprit, .name = name, .reason = details.reason});
  details.reason = name + ": " + details.reason;
  throw CommError(std::move(details));
}

}  // namespace fsdp::detail
