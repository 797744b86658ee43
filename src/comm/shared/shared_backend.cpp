#include "comm/shared/shared_backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <thread>

#include "base/assert.h"
#include "comm/shared/ops.h"

namespace fsdp::detail {

namespace {

constexpr const char* kTicketKey = "control";
constexpr size_t kTicketBytes = 128;
constexpr int kMaxRanks = 1024;  // per group; keeps a rank's part of a bank useful

Bytes bytes_of(const at::Tensor& tensor) { return {static_cast<char*>(tensor.data_ptr()), tensor.nbytes()}; }

double factor(ReduceOp op, int size) { return op == ReduceOp::average ? 1.0 / size : 1.0; }

class SharedBackend final : public CommBackend {
 public:
  SharedBackend(const char* name, const GroupInfo& info, std::unique_ptr<SegmentSource> source,
                std::unique_ptr<Liveness> liveness, ControlView view)
      : name_(name),
        info_(info),
        source_(std::move(source)),
        gate_(std::move(view), info.rank, std::move(liveness)),
        messages_(gate_),
        rounds_(gate_, messages_),
        table_(std::make_shared<AllocationTable>()) {}

  ~SharedBackend() override { gate_.leave(rounds_.idle() && !messages_.pending()); }

  const char* name() const override { return name_; }

  void wait_for_all_to_join();

  at::Tensor allocate(MemoryUse use, int64_t numel, at::ScalarType dtype) override;
  void release(const at::Tensor& slot) override;
  void claim(const at::Tensor& buffer) override;

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

  void abort(std::string_view reason) override { gate_.report(CommFault::aborted, info_.rank, reason); }

 private:
  class CollectiveWork;
  class MessageWork;

  // `keep`: tensors that must live until the work is waited for.
  WorkPtr issue(RoundOpPtr op, int64_t elements, at::ScalarType type, int argument, OpInfo info,
                std::vector<at::Tensor> keep);
  WorkPtr message(const at::Tensor& tensor, int peer, bool sending, OpInfo info);
  void run_now(const WorkPtr& work) { work->wait(info_.options.timeout, true); }

  RoundOpPtr gather_op(const at::Tensor& slot, const at::Tensor& shard);
  RoundOpPtr reduce_op(const at::Tensor& output, const at::Tensor& input, double scale);
  void release(Region& region);
  void refuse_slot(const at::Tensor& tensor, const char* what) const;
  SegmentPtr share_segment(size_t bytes);
  [[noreturn]] void rethrow_named(const CommError& error) const;

  Clock::time_point deadline(Milliseconds timeout) const { return Clock::now() + timeout; }
  Clock::time_point deadline() const { return deadline(info_.options.timeout); }

  const char* name_;
  GroupInfo info_;
  std::unique_ptr<SegmentSource> source_;
  Gate gate_;
  Messages messages_;
  Rounds rounds_;
  std::shared_ptr<AllocationTable> table_;
};

// The engine counts ranks within the group; people know world ranks.
void SharedBackend::rethrow_named(const CommError& error) const {
  CommError::Details details = error.details();
  details.rank = world_rank(info_, details.rank);
  details.culprit = world_rank(info_, details.culprit);
  const Peer& peer = info_.peers[static_cast<size_t>(error.details().culprit)];
  details.reason = "rank " + std::to_string(details.culprit) + " (host " + peer.hostname + ", pid " +
                   std::to_string(peer.pid) + "): " + details.reason;
  throw CommError(std::move(details));
}

class SharedBackend::CollectiveWork final : public PendingWork {
 public:
  CollectiveWork(SharedBackend& backend, RoundOpPtr op, std::vector<at::Tensor> keep)
      : backend_(backend), op_(std::move(op)), keep_(std::move(keep)) {}

  void wait(std::chrono::milliseconds timeout, bool /*blocking*/) override {
    try {
      backend_.rounds_.complete(op_, backend_.deadline(timeout));
    } catch (const CommError& error) {
      backend_.rethrow_named(error);
    }
  }

 private:
  SharedBackend& backend_;
  RoundOpPtr op_;
  std::vector<at::Tensor> keep_;
};

class SharedBackend::MessageWork final : public PendingWork {
 public:
  MessageWork(SharedBackend& backend, MessagePtr message, OpInfo info)
      : backend_(backend), message_(std::move(message)), info_(std::move(info)), started_(Clock::now()) {}

  void wait(std::chrono::milliseconds timeout, bool /*blocking*/) override {
    try {
      backend_.rounds_.wait_message(*message_, info_, started_, backend_.deadline(timeout));
    } catch (const CommError& error) {
      backend_.rethrow_named(error);
    }
  }

 private:
  SharedBackend& backend_;
  MessagePtr message_;
  OpInfo info_;
  Clock::time_point started_;
};

WorkPtr SharedBackend::issue(RoundOpPtr op, int64_t elements, at::ScalarType type, int argument, OpInfo info,
                             std::vector<at::Tensor> keep) {
  op->elements = static_cast<uint64_t>(elements);
  op->dtype = to_dtype(type);
  op->argument = argument;
  op->info = std::move(info);
  try {
    rounds_.issue(op, deadline());
  } catch (const CommError& error) {
    rethrow_named(error);
  }
  return std::make_shared<CollectiveWork>(*this, std::move(op), std::move(keep));
}

WorkPtr SharedBackend::message(const at::Tensor& tensor, int peer, bool sending, OpInfo info) {
  refuse_slot(tensor, info.op);
  RoundOp context;
  context.info = info;
  try {
    rounds_.throw_if_faulted(context);
  } catch (const CommError& error) {
    rethrow_named(error);
  }
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
  TORCH_CHECK(from != to,
              "fsdp: all_gather into allocated memory takes the shard from private memory; it was given the "
              "slot's own "
              "part, which other ranks may still read. Pass the shard itself.");
  const auto offset = static_cast<size_t>(whole.data - allocation->own());
  for (Region* old : allocation->overlapping(offset, whole.size))
    if (old->held) release(*old);
  std::vector<Completion> before;
  allocation->begin_use(offset, whole.size, before);
  return make_shared_gather_op(to, from, part, std::move(before));
}

void SharedBackend::release(Region& region) {
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
  if (!region->held) return;
  rounds_.drain(deadline());
  release(*region);
}

void SharedBackend::claim(const at::Tensor& buffer) {
  const Bytes whole = bytes_of(buffer);
  const AllocationPtr allocation = table_->find(whole.data, whole.size);
  if (!allocation || allocation->use() != MemoryUse::reduce) return;
  RoundOp context;
  context.info = {"claim", ""};
  try {
    rounds_.drain(deadline());
    for (Region* region :
         allocation->overlapping(static_cast<size_t>(whole.data - allocation->own()), whole.size)) {
      rounds_.wait_completions(context, deadline(), [&] { return region->completion().reached(); });
      region->held = false;
    }
  } catch (const CommError& error) {
    rethrow_named(error);
  }
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
    TORCH_CHECK(!old->held,
                "fsdp: this memory was given to reduce_scatter before and other ranks may still read it; "
                "call claim() before writing to it again");
  std::vector<Completion> before;
  Region& region = allocation->begin_use(offset, whole.size, before);
  return make_shared_reduce_scatter_op(gate_, allocation, region, to, type, scale);
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

void SharedBackend::refuse_slot(const at::Tensor& tensor, const char* what) const {
  const AllocationPtr allocation = table_->find(tensor.data_ptr(), tensor.nbytes());
  TORCH_CHECK(!allocation || allocation->use() != MemoryUse::gather, "fsdp: ", what,
              " was given memory allocated for gathers, which all ranks share; only all_gather may use it");
}

at::Tensor SharedBackend::allocate(MemoryUse use, int64_t numel, at::ScalarType dtype) {
  const size_t bytes = static_cast<size_t>(numel) * size_of(to_dtype(dtype));
  auto segment = share_segment(Allocation::segment_bytes(use, bytes, info_.size));
  auto allocation = std::make_shared<Allocation>(std::move(segment), use, bytes, info_.rank, info_.size);
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
    made = source_->create(bytes);
    FSDP_ASSERT(made.ticket.size() < kTicketBytes);
    made.ticket.copy(text, kTicketBytes - 1);
  }
  const OpInfo named{"allocate", std::to_string(bytes) + " bytes"};
  run_now(issue(make_broadcast_op(gate_.view(), info_.rank, bytes_of(ticket), 0), static_cast<int64_t>(bytes),
                at::kByte, 0, named, {ticket}));
  if (info_.rank != 0) {
    try {
      made.segment = source_->attach(text, bytes);
    } catch (const std::exception& error) {
      abort(std::string("could not attach shared memory: ") + error.what());
      throw;
    }
  }
  run_now(barrier(named));
  return made.segment;
}

void SharedBackend::wait_for_all_to_join() {
  const auto until = deadline();
  const auto absent = [&](int r) {
    return gate_.view().page(r).state.load() == static_cast<uint32_t>(RankState::absent);
  };
  for (int r = 0; r < info_.size; ++r) {
    while (absent(r)) {
      if (Clock::now() > until)
        throw RendezvousError("rank " + std::to_string(world_rank(info_, r)) +
                              " did not join the group within " +
                              std::to_string(info_.options.timeout.count()) + " ms");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  run_now(barrier({"join", name_}));
}

}  // namespace

std::unique_ptr<CommBackend> make_shared_backend(const char* name, const GroupInfo& info,
                                                 std::unique_ptr<SegmentSource> source,
                                                 std::unique_ptr<Liveness> liveness) {
  TORCH_CHECK(info.size <= kMaxRanks, "fsdp: a group of ", info.size, " ranks on one host; at most ",
              kMaxRanks, " are supported");
  const size_t bytes = ControlView::bytes(info.size);
  SegmentSource::Export made;
  if (info.rank == 0) {
    made = source->create(bytes);
    info.store->set(kTicketKey, std::vector<uint8_t>(made.ticket.begin(), made.ticket.end()));
  } else {
    info.store->wait({kTicketKey}, info.options.timeout);
    const auto ticket = info.store->get(kTicketKey);
    made.segment = source->attach(std::string(ticket.begin(), ticket.end()), bytes);
  }
  auto backend = std::make_unique<SharedBackend>(name, info, std::move(source), std::move(liveness),
                                                 ControlView(made.segment, info.size));
  backend->wait_for_all_to_join();
  return backend;
}

}  // namespace fsdp::detail
