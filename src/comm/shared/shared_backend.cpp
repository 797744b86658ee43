#include "comm/shared/shared_backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <exception>
#include <functional>
#include <thread>

#include "base/assert.h"
#include "comm/await.h"
#include "comm/shared/ops.h"

namespace fsdp::detail {

namespace {

constexpr const char* kTicketKey = "control";
constexpr size_t kTicketBytes = 128;
constexpr Milliseconds kDropPatience{1000};
constexpr int kMaxRanks = 1024;                  // per group; keeps a rank's part of a bank useful
constexpr int64_t kMaxBytes = int64_t{1} << 46;  // of one allocation over all ranks; what addresses can hold

Bytes bytes_of(const at::Tensor& tensor) { return {static_cast<char*>(tensor.data_ptr()), tensor.nbytes()}; }

double factor(ReduceOp op, int size) { return op == ReduceOp::average ? 1.0 / size : 1.0; }

std::vector<int> world_ranks(const GroupInfo& info) {
  std::vector<int> ranks;
  for (const Peer& peer : info.peers) ranks.push_back(peer.rank);
  return ranks;
}

class SharedBackend final : public CommBackend {
 public:
  SharedBackend(const char* name, const GroupInfo& info, std::unique_ptr<SegmentSource> source,
                std::unique_ptr<Liveness> liveness, ControlView view)
      : name_(name),
        info_(info),
        source_(std::move(source)),
        gate_(std::move(view), info.rank, info.ranks_on_host, std::move(liveness)),
        messages_(gate_),
        rounds_(gate_, messages_, world_ranks(info)),
        table_(std::make_shared<AllocationTable>()) {}

  ~SharedBackend() override {
    table_->release_all();
    note_why();
    gate_.leave(rounds_.idle() && !messages_.pending());
  }

  const char* name() const override { return name_; }
  bool compares_operations() const override { return true; }
  bool sums_in_order() const override { return true; }
  bool shares_memory() const override { return true; }

  void wait_for_all_to_join();

  at::Tensor allocate(MemoryUse use, int64_t numel, at::ScalarType dtype) override;
  void release(const at::Tensor& slot) override;
  void claim(const at::Tensor& memory, std::string_view label) override;

  WorkPtr all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) override;
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                         OpInfo info) override;
  WorkPtr all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) override;
  WorkPtr broadcast(const at::Tensor& tensor, int root, OpInfo info) override;
  WorkPtr send(const at::Tensor& tensor, int to, OpInfo info) override {
    return message(tensor, to, true, std::move(info));
  }
  WorkPtr recv(const at::Tensor& tensor, int from, OpInfo info) override {
    return message(tensor, from, false, std::move(info));
  }
  WorkPtr barrier(OpInfo info) override {
    return issue(make_barrier_op(), 0, at::kByte, 0, std::move(info), {});
  }

  void abort(AbortCause /*cause*/, std::string_view reason) override { abort(reason); }
  void leaving(std::string_view why) override {
    gate_.note(why.empty() ? "" : "it left the group: " + std::string(why), info_.rank);
  }

 private:
  class CollectiveWork;
  class MessageWork;

  void abort(std::string_view reason) { gate_.report(CommFault::aborted, info_.rank, reason); }
  // `tensors`: what the operation reads and writes.
  WorkPtr issue(RoundOpPtr op, int64_t elements, at::ScalarType type, int argument, OpInfo info,
                std::vector<at::Tensor> tensors);
  WorkPtr message(const at::Tensor& tensor, int peer, bool sending, OpInfo info);
  void run_now(const WorkPtr& work) { work->wait(info_.options.timeout, true); }

  RoundOpPtr gather_op(const at::Tensor& slot, const at::Tensor& shard);
  RoundOpPtr reduce_op(const at::Tensor& output, const at::Tensor& input, double scale);
  void finish_use(Region& region);
  void refuse_slot(const at::Tensor& tensor, const char* what) const;
  void note_why();
  void drop(const std::function<bool()>& complete);
  SegmentPtr share_segment(size_t bytes);
  SegmentSource::Export create_or_abort(size_t bytes);
  SegmentPtr attach_or_abort(const char* ticket, size_t bytes);

  // Runs `fn`. The engine counts ranks within the group; people know world ranks, hosts and processes.
  template <class Fn>
  auto named(Fn fn) -> decltype(fn()) {
    if (abandoned_)
      gate_.report(CommFault::aborted, info_.rank,
                   "an exception of its own dropped work in flight that the others had not come to yet, and "
                   "it used the group again. Wait for work before what may throw, or make a new group");
    try {
      return fn();
    } catch (const CommError& error) {
      CommError::Details details = error.details();
      const std::string name = name_of(info_, details.culprit);
      details.rank = world_rank(info_, details.rank);
      details.culprit = world_rank(info_, details.culprit);
      info_.cause->note({.culprit = details.culprit, .name = name, .reason = details.reason});
      details.reason = name + ": " + details.reason;
      throw CommError(std::move(details));
    }
  }

  Clock::time_point deadline() const { return deadline_after(info_.options.timeout); }

  const char* name_;
  GroupInfo info_;
  std::unique_ptr<SegmentSource> source_;
  Gate gate_;
  Messages messages_;
  Rounds rounds_;
  std::shared_ptr<AllocationTable> table_;
  uint32_t allocations_ = 0;
  bool abandoned_ = false;  // an exception dropped work that is not complete
};

class SharedBackend::CollectiveWork final : public PendingWork {
 public:
  CollectiveWork(SharedBackend& backend, RoundOpPtr op) : backend_(backend), op_(std::move(op)) {}

  void wait(std::chrono::milliseconds timeout, bool /*blocking*/) override {
    backend_.named([&] { backend_.rounds_.complete(op_, deadline_after(timeout)); });
  }
  bool drop() override {
    backend_.drop([this] { return op_->complete(); });
    return true;
  }

 private:
  SharedBackend& backend_;
  RoundOpPtr op_;
};

class SharedBackend::MessageWork final : public PendingWork {
 public:
  MessageWork(SharedBackend& backend, MessagePtr message, OpInfo info)
      : backend_(backend), message_(std::move(message)), info_(std::move(info)), started_(Clock::now()) {}

  void wait(std::chrono::milliseconds timeout, bool /*blocking*/) override {
    backend_.named(
        [&] { backend_.rounds_.wait_message(*message_, info_, started_, deadline_after(timeout)); });
  }
  bool drop() override {
    backend_.drop([this] { return message_->complete; });
    return true;
  }

 private:
  SharedBackend& backend_;
  MessagePtr message_;
  OpInfo info_;
  Clock::time_point started_;
};

WorkPtr SharedBackend::issue(RoundOpPtr op, int64_t elements, at::ScalarType type, int argument, OpInfo info,
                             std::vector<at::Tensor> tensors) {
  op->elements = static_cast<uint64_t>(elements);
  op->dtype = to_dtype(type);
  op->argument = argument;
  op->info = std::move(info);
  op->tensors = std::move(tensors);
  named([&] { rounds_.issue(op, deadline()); });
  return std::make_shared<CollectiveWork>(*this, std::move(op));
}

WorkPtr SharedBackend::message(const at::Tensor& tensor, int peer, bool sending, OpInfo info) {
  refuse_slot(tensor, info.op);
  RoundOp context;
  context.info = info;
  named([&] { rounds_.throw_if_faulted(context); });
  return std::make_shared<MessageWork>(*this, messages_.post(tensor, peer, sending, info.label), info);
}

WorkPtr SharedBackend::all_gather(const at::Tensor& slot, const at::Tensor& shard, OpInfo info) {
  const at::Tensor source = shard.scalar_type() == slot.scalar_type() ? shard : shard.to(slot.scalar_type());
  return issue(gather_op(slot, source), slot.numel(), slot.scalar_type(), 0, std::move(info), {slot, source});
}

RoundOpPtr SharedBackend::gather_op(const at::Tensor& slot, const at::Tensor& shard) {
  const Bytes whole = bytes_of(slot);
  const char* from = bytes_of(shard).data;
  const AllocationPtr allocation = table_->find(whole.data, whole.size);
  if (!allocation || allocation->use() != MemoryUse::gather || whole.size == 0)
    return make_gather_op(gate_.view(), info_.rank, whole, from);
  const size_t part = whole.size / static_cast<size_t>(info_.size);
  char* to = whole.data + static_cast<size_t>(info_.rank) * part;
  const auto offset = static_cast<size_t>(whole.data - allocation->own());
  for (Region* old : allocation->overlapping(offset, whole.size))
    if (old->held) finish_use(*old);
  std::vector<Completion> before;
  Region& region = allocation->begin_use(offset, whole.size, before);
  // What lies there already is not written again: nothing needs to be waited for.
  RoundOpPtr op = from == to ? make_barrier_op() : make_shared_gather_op(to, from, part, std::move(before));
  op->allocation = allocation->number();
  op->offset = offset;
  region.operation = op;
  return op;
}

// Counts this rank as finished with a slot, but never before the gather into it is complete: until then
// others must not take this rank for one that has let go of what was there before.
void SharedBackend::finish_use(Region& region) {
  if (const auto pending = region.operation.lock()) named([&] { rounds_.complete(pending, deadline()); });
  region.held = false;
  if (region.finish()) gate_.ring(kCompletions);
}

void SharedBackend::release(const at::Tensor& slot) {
  const Bytes whole = bytes_of(slot);
  const AllocationPtr allocation = table_->find(whole.data, whole.size);
  if (!allocation || allocation->use() != MemoryUse::gather || whole.size == 0) return;
  Region* region = allocation->find(static_cast<size_t>(whole.data - allocation->own()), whole.size);
  TORCH_CHECK(
      region != nullptr,
      "fsdp: release() of memory that was not gathered; pass the tensor that was given to all_gather");
  // While an exception unwinds nothing is waited for: the slot stays held until it is gathered into again,
  // claimed or dropped.
  const auto pending = region->operation.lock();
  const bool in_flight = pending && !pending->complete();
  if (region->held && !(in_flight && std::uncaught_exceptions() > 0)) finish_use(*region);
}

void SharedBackend::claim(const at::Tensor& memory, std::string_view label) {
  const Bytes whole = bytes_of(memory);
  const AllocationPtr allocation = table_->find(whole.data, whole.size);
  if (!allocation || whole.size == 0) return;
  RoundOp context;
  context.info = {"claim", std::string(label)};
  const auto offset = static_cast<size_t>(whole.data - allocation->own());
  const std::vector<Region*> regions = allocation->overlapping(offset, whole.size);
  for (Region* region : regions)
    if (allocation->use() == MemoryUse::gather && region->held) finish_use(*region);
  named([&] {
    for (Region* region : regions) {
      if (const auto pending = region->operation.lock()) rounds_.complete(pending, deadline());
      rounds_.wait_completions(context, deadline(), [&] { return region->completion().reached(); });
      region->held = false;
    }
  });
}

WorkPtr SharedBackend::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                      double scale, OpInfo info) {
  refuse_slot(output, "reduce_scatter's output");
  refuse_slot(input, "reduce_scatter's input");
  RoundOpPtr round_op = reduce_op(output, input, scale * factor(op, info_.size));
  return issue(std::move(round_op), input.numel(), input.scalar_type(), static_cast<int>(op), std::move(info),
               {output, input});
}

RoundOpPtr SharedBackend::reduce_op(const at::Tensor& output, const at::Tensor& input, double scale) {
  const Bytes whole = bytes_of(input);
  char* to = bytes_of(output).data;
  const DType type = to_dtype(input.scalar_type());
  const AllocationPtr allocation = table_->find(whole.data, whole.size);
  if (!allocation || whole.size == 0)
    return make_reduce_scatter_op(gate_.view(), info_.rank, to, whole, type, scale);
  TORCH_CHECK(!table_->find(to, output.nbytes()),
              "fsdp: reduce_scatter from allocated memory needs an output in private memory");
  const auto offset = static_cast<size_t>(whole.data - allocation->own());
  for (Region* old : allocation->overlapping(offset, whole.size))
    TORCH_CHECK(
        !old->held,
        "fsdp: this memory was given to reduce_scatter before and other ranks may still read it; call "
        "claim() before writing to it again");
  std::vector<Completion> before;
  Region& region = allocation->begin_use(offset, whole.size, before);
  RoundOpPtr op = make_shared_reduce_scatter_op(gate_, allocation, region, to, type, scale);
  op->allocation = allocation->number();
  op->offset = offset;
  region.operation = op;
  return op;
}

WorkPtr SharedBackend::all_reduce(const at::Tensor& tensor, ReduceOp op, OpInfo info) {
  refuse_slot(tensor, "all_reduce");
  auto round_op = make_all_reduce_op(gate_.view(), info_.rank, bytes_of(tensor),
                                     to_dtype(tensor.scalar_type()), factor(op, info_.size));
  return issue(std::move(round_op), tensor.numel(), tensor.scalar_type(), static_cast<int>(op),
               std::move(info), {tensor});
}

WorkPtr SharedBackend::broadcast(const at::Tensor& tensor, int root, OpInfo info) {
  refuse_slot(tensor, "broadcast");
  return issue(make_broadcast_op(gate_.view(), info_.rank, bytes_of(tensor), root), tensor.numel(),
               tensor.scalar_type(), root, std::move(info), {tensor});
}

// Work that stays in flight reads and writes memory whose owner has forgotten it. So the others get a moment
// to complete it; then this rank may only leave.
void SharedBackend::drop(const std::function<bool()>& complete) {
  const auto until = Clock::now() + kDropPatience;
  try {
    while (!abandoned_ && !complete() && !gate_.faulted()) {
      rounds_.move_on();
      abandoned_ = Clock::now() > until;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  } catch (const std::exception&) {
    // The group has failed; its next call says why.
  }
}

// A rank that says nothing itself leaves because of an exception, its own or one that it met in another
// group.
void SharedBackend::note_why() {
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

void SharedBackend::refuse_slot(const at::Tensor& tensor, const char* what) const {
  const AllocationPtr allocation = table_->find(tensor.data_ptr(), tensor.nbytes());
  TORCH_CHECK(!allocation || allocation->use() != MemoryUse::gather, "fsdp: ", what,
              " was given memory allocated for gathers, which all ranks share; only all_gather may use it");
}

at::Tensor SharedBackend::allocate(MemoryUse use, int64_t numel, at::ScalarType dtype) {
  const auto element = static_cast<int64_t>(size_of(to_dtype(dtype)));
  TORCH_CHECK(numel <= kMaxBytes / element / info_.size, "fsdp: allocate of ", numel, " elements for ",
              info_.size, " ranks is more than memory can hold");
  const auto bytes = static_cast<size_t>(numel * element);
  auto segment = share_segment(Allocation::segment_bytes(use, bytes, info_.size));
  auto allocation =
      std::make_shared<Allocation>(std::move(segment), use, bytes, info_.rank, info_.size, ++allocations_);
  table_->add(allocation);
  return at::from_blob(
      allocation->own(), {numel}, [table = table_](void* own) { table->remove(own); },
      at::TensorOptions().dtype(dtype).device(at::kCPU));
}

// The first rank creates, tells the others the ticket, and lets go of it when all have attached.
SegmentPtr SharedBackend::share_segment(size_t bytes) {
  at::Tensor ticket = at::empty({static_cast<int64_t>(kTicketBytes)}, at::TensorOptions().dtype(at::kByte));
  char* text = static_cast<char*>(ticket.data_ptr());
  std::memset(text, 0, kTicketBytes);
  SegmentSource::Export made;
  if (info_.rank == 0) {
    made = create_or_abort(bytes);
    FSDP_ASSERT(made.ticket.size() < kTicketBytes);
    made.ticket.copy(text, kTicketBytes - 1);
  }
  const OpInfo info{"allocate", std::to_string(bytes) + " bytes"};
  run_now(issue(make_broadcast_op(gate_.view(), info_.rank, bytes_of(ticket), 0), static_cast<int64_t>(bytes),
                at::kByte, 0, info, {ticket}));
  if (info_.rank != 0) made.segment = attach_or_abort(text, bytes);
  run_now(barrier(info));
  return made.segment;
}

SegmentSource::Export SharedBackend::create_or_abort(size_t bytes) {
  try {
    return source_->create(bytes);
  } catch (const std::exception& error) {
    abort(std::string("could not make shared memory: ") + error.what());
    throw;
  }
}

// Memory whose maker has failed is gone; the fault it wrote down before says more than that.
SegmentPtr SharedBackend::attach_or_abort(const char* ticket, size_t bytes) {
  try {
    return source_->attach(ticket, bytes);
  } catch (const std::exception& error) {
    RoundOp context;
    context.info = {"allocate", std::to_string(bytes) + " bytes"};
    named([&] { rounds_.throw_if_faulted(context); });
    abort(std::string("could not attach shared memory: ") + error.what());
    throw;
  }
}

void SharedBackend::wait_for_all_to_join() {
  const auto until = deadline();
  RoundOp context;
  context.info = {"join", name_};
  for (int r = 0; r < info_.size; ++r) {
    while (gate_.view().page(r).state.load() == static_cast<uint32_t>(RankState::absent)) {
      gate_.look_for_dead();
      named([&] { rounds_.throw_if_faulted(context); });
      if (Clock::now() > until)
        throw RendezvousError(name_of(info_, r) + " did not join the group within " +
                              std::to_string(info_.options.timeout.count()) + " ms");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  run_now(barrier({"join", name_}));
}

// A rank that comes late finds only that the memory is gone; the first that failed knows why.
[[noreturn]] void rethrow_first(const GroupInfo& info, const Error& error) {
  constexpr const char* kFailedKey = "failed";
  std::string first;
  try {
    if (info.store->check({kFailedKey})) {
      const auto bytes = info.store->get(kFailedKey);
      first.assign(bytes.begin(), bytes.end());
    } else {
      publish_key(info, kFailedKey, error.what());
    }
  } catch (const std::exception&) {
    // Without the store there is only what this rank saw.
  }
  if (!first.empty() && first != error.what())
    throw RendezvousError(std::string(error.what()) + "; a group failed first by: " + first);
  throw;
}

}  // namespace

std::unique_ptr<CommBackend> make_shared_backend(const char* name, const GroupInfo& info,
                                                 std::unique_ptr<SegmentSource> source,
                                                 std::unique_ptr<Liveness> liveness) {
  TORCH_CHECK(info.size <= kMaxRanks, "fsdp: a group of ", info.size, " ranks on one host; at most ",
              kMaxRanks, " are supported");
  SegmentSource::Export
      made;  // outlives the report of a failure: who cannot attach any more finds the report
  try {
    const size_t bytes = ControlView::bytes(info.size);
    if (info.rank == 0) {
      made = source->create(bytes);
      publish_key(info, kTicketKey, made.ticket);
    } else {
      made.segment = source->attach(await_key(info, kTicketKey, 0), bytes);
    }
    auto backend = std::make_unique<SharedBackend>(name, info, std::move(source), std::move(liveness),
                                                   ControlView(made.segment, info.size));
    backend->wait_for_all_to_join();
    return backend;
  } catch (const Error& error) {
    rethrow_first(info, error);
  }
}

}  // namespace fsdp::detail
