#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <fsdp/comm.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/clock.h"
#include "base/env.h"
#include "comm/await.h"
#include "comm/timed_work.h"

namespace fsdp {

using detail::Clock;
using detail::CommState;
using detail::OpInfo;

namespace detail {

DType to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    case at::kLong:
      return DType::i64;
    case at::kByte:
      return DType::u8;
    default:
      TORCH_CHECK(false, "fsdp: tensors of type ", type,
                  " cannot be communicated; use fp32, fp64, bf16, fp16, int64 or uint8");
  }
}

void CommState::check_process(const char* op, std::string_view label) const {
  TORCH_CHECK(
      owner.is_this(), "fsdp: ", op, " '", label, "' in process ", ::getpid(), ", a forked child of process ",
      owner.pid(),
      ", which this group belongs to. Only the process that made a group may use it: let a child load "
      "data, or start ranks with run_local() or a launcher");
}

}  // namespace detail

std::chrono::milliseconds default_timeout() {
  const int seconds = detail::env_int("FSDP_TIMEOUT", 1).value_or(300);
  return std::chrono::seconds(seconds);
}

namespace {

void check_timeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK(timeout.count() > 0, "fsdp: a timeout of ", timeout.count(), " ms; it must be positive");
}

// Every message starts alike, so that users can find the call.
void check_tensor(const CommState& state, const at::Tensor& tensor, const char* op, std::string_view label,
                  const char* what) {
  TORCH_CHECK(tensor.defined(), "fsdp: ", op, " '", label, "': ", what, " is an undefined tensor");
  TORCH_CHECK(tensor.device() == state.info.device, "fsdp: ", op, " '", label, "': ", what, " is on ",
              tensor.device(), " but this group moves data of ", state.info.device);
  TORCH_CHECK(tensor.is_contiguous(), "fsdp: ", op, " '", label, "': ", what,
              " is not contiguous; call .contiguous()");
  detail::to_dtype(tensor.scalar_type());
}

void check_peer(const CommState& state, int peer, const char* op, std::string_view label) {
  TORCH_CHECK(peer >= 0 && peer < state.info.size, "fsdp: ", op, " '", label, "': rank ", peer,
              " is not in this group of ", state.info.size);
}

void check_reduce(at::ScalarType type, ReduceOp op, double scale, const char* name, std::string_view label) {
  const bool whole = c10::isIntegralType(type, false);
  TORCH_CHECK(!whole || (op == ReduceOp::sum && scale == 1.0), "fsdp: ", name, " '", label,
              "': integers can only be summed, without a scale");
}

// Checks the sizes of whole [W * n] and part [n].
void check_parts(const CommState& state, const at::Tensor& whole, const at::Tensor& part, const char* op,
                 std::string_view label) {
  TORCH_CHECK(whole.numel() == part.numel() * state.info.size, "fsdp: ", op, " '", label,
              "': the full buffer has ", whole.numel(), " elements and the shard ", part.numel(), "; with ",
              state.info.size, " ranks it must be ", part.numel() * state.info.size);
}

// Ends the group, and throws the difference between the ranks if it is found soon.
[[noreturn]] void throw_order_differs(CommState& state) {
  constexpr const char* kReason = "ranks were asked for different operations";
  state.backend->abort(detail::AbortCause::order, kReason);
  state.order.throw_difference(state.info);
  throw CommError({.fault = CommFault::aborted,
                   .rank = detail::world_rank(state.info, state.info.rank),
                   .culprit = -1,
                   .op = "check_order",
                   .label = "operations so far",
                   .sequence = 0,
                   .elapsed = {},
                   .reason = kReason});
}

template <class Start>
Work start(const std::shared_ptr<CommState>& state, const char* op, std::string_view label, size_t bytes,
           Start issue, bool collective = true) {
  state->check_process(op, label);
  state->info.activity->note_thread();
  const auto begin = Clock::now();
  if (state->info.heartbeat) state->info.heartbeat->note_collective(op, label);
  const detail::WaitScope scope(state->info);
  if (collective && state->keeps_order()) state->order.add(op, label, bytes, state->info.activity->get());
  detail::WorkPtr work = state->explained([&] { return issue(OpInfo{op, std::string(label)}); });
  state->stats.add(op, 1, static_cast<int64_t>(bytes), detail::seconds_since(begin));
  return Work(std::make_shared<detail::TimedWork>(state, std::move(work), op));
}

}  // namespace

Comm::Comm(std::shared_ptr<CommState> state) : state_(std::move(state)) {}

Comm Comm::create(const World& world, const CommOptions& options) {
  check_timeout(options.timeout);
  auto state = std::make_shared<CommState>();
  const int number = world.state().groups.fetch_add(1);
  world.state().cause->clear();  // a new group: faults of earlier ones do not count
  state->info = {.rank = world.rank(),
                 .size = world.size(),
                 .peers = world.peers(),
                 .ranks_on_host = world.local_size(),
                 .device = world.device(),
                 .store = c10::make_intrusive<::c10d::PrefixStore>("fsdp/group/" + std::to_string(number),
                                                                   world.store()),
                 .options = options,
                 .cause = world.state().cause,
                 .activity = world.state().activity,
                 .heartbeat = detail::heartbeat_of(world)};
  state->info.heartbeat->start(state->info);
  const detail::WaitScope scope(state->info);
  state->backend = detail::make_backend(state->info);
  return Comm(std::move(state));
}

int Comm::rank() const { return state_->info.rank; }
int Comm::size() const { return state_->info.size; }
std::chrono::milliseconds Comm::timeout() const { return state_->info.options.timeout; }
bool Comm::sums_in_order() const { return state_->backend->sums_in_order(); }
bool Comm::shares_memory() const { return state_->backend->shares_memory(); }
const char* Comm::backend_name() const { return state_->backend->name(); }

at::Tensor Comm::allocate(MemoryUse use, int64_t numel, at::ScalarType dtype) {
  state_->check_process("allocate", "");
  TORCH_CHECK(numel >= 0, "fsdp: allocate of ", numel, " elements");
  detail::to_dtype(dtype);
  const detail::WaitScope scope(state_->info);
  return state_->backend->allocate(use, numel, dtype);
}

Work Comm::all_gather(const at::Tensor& slot, const at::Tensor& shard, std::string_view label) {
  constexpr const char* kOp = "all_gather";
  check_tensor(*state_, slot, kOp, label, "slot");
  check_tensor(*state_, shard, kOp, label, "shard");
  check_parts(*state_, slot, shard, kOp, label);
  return start(state_, kOp, label, slot.nbytes(),
               [&](OpInfo info) { return state_->backend->all_gather(slot, shard, std::move(info)); });
}

void Comm::release(const at::Tensor& slot) {
  if (!state_->owner.is_this()) return;
  const detail::WaitScope scope(state_->info);
  state_->backend->release(slot);
}

void Comm::claim(const at::Tensor& memory, std::string_view label) {
  if (!state_->owner.is_this()) return;
  const detail::WaitScope scope(state_->info);
  state_->explained([&] { state_->backend->claim(memory, label); });
}

Work Comm::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, double scale,
                          std::string_view label) {
  constexpr const char* kOp = "reduce_scatter";
  check_tensor(*state_, output, kOp, label, "output");
  check_tensor(*state_, input, kOp, label, "input");
  check_parts(*state_, input, output, kOp, label);
  TORCH_CHECK(input.scalar_type() == output.scalar_type(), "fsdp: ", kOp, " '", label, "': the input is ",
              input.scalar_type(), " and the output ", output.scalar_type(), "; they must agree");
  check_reduce(input.scalar_type(), op, scale, kOp, label);
  return start(state_, kOp, label, input.nbytes(), [&](OpInfo info) {
    return state_->backend->reduce_scatter(output, input, op, scale, std::move(info));
  });
}

Work Comm::all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view label) {
  constexpr const char* kOp = "all_reduce";
  check_tensor(*state_, tensor, kOp, label, "tensor");
  check_reduce(tensor.scalar_type(), op, 1.0, kOp, label);
  return start(state_, kOp, label, tensor.nbytes(),
               [&](OpInfo info) { return state_->backend->all_reduce(tensor, op, std::move(info)); });
}

Work Comm::broadcast(const at::Tensor& tensor, int root, std::string_view label) {
  constexpr const char* kOp = "broadcast";
  check_tensor(*state_, tensor, kOp, label, "tensor");
  check_peer(*state_, root, kOp, label);
  return start(state_, kOp, label, tensor.nbytes(),
               [&](OpInfo info) { return state_->backend->broadcast(tensor, root, std::move(info)); });
}

Work Comm::send(const at::Tensor& tensor, int to, std::string_view label) {
  check_tensor(*state_, tensor, "send", label, "tensor");
  check_peer(*state_, to, "send", label);
  TORCH_CHECK(to != rank(), "fsdp: send '", label, "': rank ", to, " cannot send to itself");
  return start(
      state_, "send", label, tensor.nbytes(),
      [&](OpInfo info) { return state_->backend->send(tensor, to, std::move(info)); }, /*collective=*/false);
}

Work Comm::recv(const at::Tensor& tensor, int from, std::string_view label) {
  check_tensor(*state_, tensor, "recv", label, "tensor");
  check_peer(*state_, from, "recv", label);
  TORCH_CHECK(from != rank(), "fsdp: recv '", label, "': rank ", from, " cannot receive from itself");
  return start(
      state_, "recv", label, tensor.nbytes(),
      [&](OpInfo info) { return state_->backend->recv(tensor, from, std::move(info)); },
      /*collective=*/false);
}

void Comm::barrier(std::string_view label) {
  start(state_, "barrier", label, 0, [&](OpInfo info) {
    return state_->backend->barrier(std::move(info));
  }).wait(state_->info.options.timeout);
}

// See Note [Order of operations]. The comparison itself cannot differ between ranks, so it is not in the log.
void Comm::check_order(bool now) {
  state_->check_process("check_order", "");
  if (!state_->keeps_order()) return;
  const at::Tensor sum =
      at::full({1}, state_->order.digest(), at::TensorOptions(state_->info.device).dtype(at::kLong));
  const detail::WaitScope scope(state_->info);
  const bool equal = state_->explained([&] {
    state_->backend->all_reduce(sum, ReduceOp::sum, OpInfo{"all_reduce", "order of operations"})
        ->wait(state_->info.options.timeout, /*blocking=*/now);
    state_->order.ask(state_->info, sum);
    return state_->order.look(state_->info, now);
  });
  if (!equal) throw_order_differs(*state_);
}

void Comm::share_order() const {
  if (state_->owner.is_this() && state_->keeps_order()) state_->order.share(state_->info);
}

// Colours are exchanged through the store: that works alike for every backend, and splitting is rare.
Comm Comm::split(int colour, std::string_view name) {
  state_->check_process("split", name);
  TORCH_CHECK(colour >= 0, "fsdp: split '", name, "': colour ", colour, " is negative");
  const auto& parent = state_->info;
  const detail::WaitScope scope(parent);
  const std::string prefix = "split/" + std::to_string(state_->splits++) + "/";
  const auto key = [&](int rank) { return prefix + "colour/" + std::to_string(rank); };
  const std::string text = std::to_string(colour);
  detail::publish_key(parent, key(parent.rank), text);

  auto state = std::make_shared<CommState>();
  state->info = parent;
  state->info.size = 0;
  state->info.peers.clear();
  for (int r = 0; r < parent.size; ++r) {
    if (detail::await_key(parent, key(r), r) != text) continue;
    if (r == parent.rank) state->info.rank = state->info.size;
    state->info.peers.push_back(parent.peers[static_cast<size_t>(r)]);
    ++state->info.size;
  }
  state->info.store = c10::make_intrusive<::c10d::PrefixStore>(prefix + "group/" + text, parent.store);
  state->backend = detail::make_backend(state->info);
  return Comm(std::move(state));
}

void Comm::abort(std::string_view reason) {
  if (state_->owner.is_this()) state_->backend->abort(detail::AbortCause::caller, reason);
}

void Comm::leaving(std::string_view why) {
  if (state_->owner.is_this()) state_->backend->leaving(why);
}

void Comm::gave_up(std::string_view why) {
  if (state_->owner.is_this()) state_->backend->gave_up(why);
}

std::vector<OpStats> Comm::stats() const { return state_->stats.rows(); }

}  // namespace fsdp
