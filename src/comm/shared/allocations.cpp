#include "comm/shared/allocations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <exception>

#include "base/assert.h"
#include "comm/shared/ops.h"

namespace fsdp::detail {

namespace {

constexpr size_t kTicketBytes = 128;
constexpr int64_t kMaxBytes = int64_t{1} << 46;  // of one allocation over all ranks; the limit of addresses

}  // namespace

Allocations::Allocations(SharedGroup& group, std::unique_ptr<SegmentSource> source)
    : group_(group), source_(std::move(source)), table_(std::make_shared<AllocationTable>()) {}

at::Tensor Allocations::allocate(MemoryUse use, int64_t numel, at::ScalarType dtype) {
  const GroupInfo& info = group_.info();
  const auto element = static_cast<int64_t>(size_of(to_dtype(dtype)));
  TORCH_CHECK(numel <= kMaxBytes / element / info.size, "fsdp: allocate of ", numel, " elements for ",
              info.size, " ranks is more than memory can hold");
  const auto bytes = static_cast<size_t>(numel * element);
  auto segment = share_segment(Allocation::segment_bytes(use, bytes, info.size));
  auto allocation =
      std::make_shared<Allocation>(std::move(segment), use, bytes, info.rank, info.size, ++count_);
  table_->add(allocation);
  return at::from_blob(
      allocation->own(), {numel}, [table = table_](void* own) { table->remove(own); },
      at::TensorOptions().dtype(dtype).device(at::kCPU));
}

// The first rank creates it, sends the others the ticket, and drops its export when all have attached.
SegmentPtr Allocations::share_segment(size_t bytes) {
  const int rank = group_.info().rank;
  at::Tensor ticket = at::empty({static_cast<int64_t>(kTicketBytes)}, at::TensorOptions().dtype(at::kByte));
  char* text = static_cast<char*>(ticket.data_ptr());
  std::memset(text, 0, kTicketBytes);
  SegmentSource::Export made;
  if (rank == 0) {
    made = create_or_abort(bytes);
    FSDP_ASSERT(made.ticket.size() < kTicketBytes);
    made.ticket.copy(text, kTicketBytes - 1);
  }
  const OpInfo info{"allocate", std::to_string(bytes) + " bytes"};
  group_.run_now(group_.issue(make_broadcast_op(group_.view(), rank, bytes_of(ticket), 0),
                              static_cast<int64_t>(bytes), at::kByte, 0, info, {ticket}));
  if (rank != 0) made.segment = attach_or_abort(text, bytes);
  group_.run_now(group_.issue(make_barrier_op(), 0, at::kByte, 0, info, {}));
  return made.segment;
}

SegmentSource::Export Allocations::create_or_abort(size_t bytes) {
  try {
    return source_->create(bytes);
  } catch (const std::exception& error) {
    group_.abort(std::string("could not make shared memory: ") + error.what());
    throw;
  }
}

// Memory of a rank that failed is gone; the fault it reported before has the cause.
SegmentPtr Allocations::attach_or_abort(const char* ticket, size_t bytes) {
  try {
    return source_->attach(ticket, bytes);
  } catch (const std::exception& error) {
    group_.throw_if_faulted(context_of({"allocate", std::to_string(bytes) + " bytes"}));
    group_.abort(std::string("could not attach shared memory: ") + error.what());
    throw;
  }
}

RoundOpPtr Allocations::gather_op(const at::Tensor& slot, const at::Tensor& shard) {
  const Bytes whole = bytes_of(slot);
  const char* from = bytes_of(shard).data;
  const GroupInfo& info = group_.info();
  const AllocationPtr allocation = table_->find(whole.data, whole.size);
  if (!allocation || allocation->use() != MemoryUse::gather || whole.size == 0)
    return make_gather_op(group_.view(), info.rank, whole, from);
  const size_t part = whole.size / static_cast<size_t>(info.size);
  char* to = whole.data + static_cast<size_t>(info.rank) * part;
  const auto offset = static_cast<size_t>(whole.data - allocation->own());
  for (Extent* old : allocation->overlapping(offset, whole.size))
    if (old->held) finish_use(*old);
  std::vector<Completion> before;
  Extent& extent = allocation->begin_use(offset, whole.size, before);
  // A shard that lies there already is not written again: no wait is needed.
  RoundOpPtr op = from == to ? make_barrier_op() : make_shared_gather_op(to, from, part, std::move(before));
  op->allocation = allocation->number();
  op->offset = offset;
  extent.operation = op;
  return op;
}

RoundOpPtr Allocations::reduce_op(const at::Tensor& output, const at::Tensor& input, double scale) {
  const Bytes whole = bytes_of(input);
  char* to = bytes_of(output).data;
  const DType type = to_dtype(input.scalar_type());
  const AllocationPtr allocation = table_->find(whole.data, whole.size);
  if (!allocation || whole.size == 0)
    return make_reduce_scatter_op(group_.view(), group_.info().rank, to, whole, type, scale);
  TORCH_CHECK(!table_->find(to, output.nbytes()),
              "fsdp: reduce_scatter from allocated memory needs an output in private memory");
  const auto offset = static_cast<size_t>(whole.data - allocation->own());
  for (Extent* old : allocation->overlapping(offset, whole.size))
    TORCH_CHECK(
        !old->held,
        "fsdp: this memory was given to reduce_scatter before and other ranks may still read it; call "
        "claim() before writing to it again");
  std::vector<Completion> before;
  Extent& extent = allocation->begin_use(offset, whole.size, before);
  RoundOpPtr op = make_shared_reduce_scatter_op(group_.gate(), allocation, extent, to, type, scale);
  op->allocation = allocation->number();
  op->offset = offset;
  extent.operation = op;
  return op;
}

// Counts this rank as finished with a slot, but only once the gather into it is complete. Before that, the
// count would tell others that this rank has released the slot's old contents.
void Allocations::finish_use(Extent& extent) {
  if (const auto pending = extent.operation.lock())
    group_.named([&] { group_.rounds().complete(pending, group_.deadline()); });
  extent.held = false;
  if (extent.finish()) group_.gate().ring(kCompletions);
}

void Allocations::release(const at::Tensor& slot) {
  const Bytes whole = bytes_of(slot);
  const AllocationPtr allocation = table_->find(whole.data, whole.size);
  if (!allocation || allocation->use() != MemoryUse::gather || whole.size == 0) return;
  Extent* extent = allocation->find(static_cast<size_t>(whole.data - allocation->own()), whole.size);
  TORCH_CHECK(
      extent != nullptr,
      "fsdp: release() of memory that was not gathered; pass the tensor that was given to all_gather");
  // While an exception unwinds there are no waits: the slot stays held until it is gathered into again,
  // claimed or dropped.
  const auto pending = extent->operation.lock();
  const bool in_flight = pending && !pending->complete();
  if (extent->held && !(in_flight && std::uncaught_exceptions() > 0)) finish_use(*extent);
}

void Allocations::claim(const at::Tensor& memory, std::string_view label) {
  const Bytes whole = bytes_of(memory);
  const AllocationPtr allocation = table_->find(whole.data, whole.size);
  if (!allocation || whole.size == 0) return;
  const RoundOp context = context_of({"claim", std::string(label)});
  const auto offset = static_cast<size_t>(whole.data - allocation->own());
  const std::vector<Extent*> extents = allocation->overlapping(offset, whole.size);
  for (Extent* extent : extents)
    if (allocation->use() == MemoryUse::gather && extent->held) finish_use(*extent);
  group_.named([&] {
    Rounds& rounds = group_.rounds();
    for (Extent* extent : extents) {
      if (const auto pending = extent->operation.lock()) rounds.complete(pending, group_.deadline());
      rounds.wait_completions(context, group_.deadline(), [&] { return extent->completion().reached(); });
      extent->held = false;
    }
  });
}

void Allocations::refuse_slot(const at::Tensor& tensor, const char* what) const {
  const AllocationPtr allocation = table_->find(tensor.data_ptr(), tensor.nbytes());
  TORCH_CHECK(!allocation || allocation->use() != MemoryUse::gather, "fsdp: ", what,
              " was given memory allocated for gathers, which all ranks share; only all_gather may use it");
}

}  // namespace fsdp::detail
