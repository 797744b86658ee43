#include "conformance/suite.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "support/ranks.h"

namespace fsdp::testing {

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kByte};
constexpr std::chrono::milliseconds kWait{60000};

// The largest needs many rounds through the staging banks, whatever the number of ranks.
std::vector<int64_t> part_sizes(at::ScalarType type, int ranks) {
  if (type == at::kFloat || type == at::kBFloat16) return {0, 1, 7, 1000, 65537, 2000003 / ranks};
  return {0, 1, 7, 8191};
}

// Small whole numbers: every sum over eight ranks is exact in every type.
at::Tensor pattern(int rank, int64_t start, int64_t count, at::ScalarType type, c10::Device device) {
  return (at::arange(start, start + count, at::kLong) * 3 + rank * 7).remainder(8).to(type).to(device);
}

at::Tensor sum_of_patterns(int size, int64_t start, int64_t count, at::ScalarType type, c10::Device device) {
  auto sum = at::zeros({count}, at::kLong);
  for (int r = 0; r < size; ++r) sum += pattern(r, start, count, at::kLong, at::kCPU);
  return sum.to(type).to(device);
}

void require_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  const auto a = got.cpu();
  const auto b = want.cpu();
  require(a.scalar_type() == b.scalar_type() && a.equal(b), what + ": wrong contents");
}

std::string name_of(const char* op, at::ScalarType type, int64_t n) {
  return std::string(op) + " " + c10::toString(type) + " x " + std::to_string(n);
}

void check_gather(Comm& comm, c10::Device device, at::ScalarType type, int64_t n, bool allocated) {
  const auto options = at::TensorOptions().dtype(type).device(device);
  const int64_t total = n * comm.size();
  auto slot = allocated ? comm.allocate(MemoryUse::gather, total, type) : at::full({total}, 9, options);
  comm.all_gather(slot, pattern(comm.rank(), 0, n, type, device), "gather").wait();
  std::vector<at::Tensor> want;
  for (int r = 0; r < comm.size(); ++r) want.push_back(pattern(r, 0, n, type, device));
  require_equal(slot, at::cat(want), name_of("all_gather", type, n));
}

void check_gather_in_place(Comm& comm, c10::Device device, at::ScalarType type, int64_t n) {
  auto slot = at::full({n * comm.size()}, 9, at::TensorOptions().dtype(type).device(device));
  auto part = slot.narrow(0, comm.rank() * n, n);
  part.copy_(pattern(comm.rank(), 0, n, type, device));
  comm.all_gather(slot, part, "gather in place").wait();
  for (int r = 0; r < comm.size(); ++r)
    require_equal(slot.narrow(0, r * n, n), pattern(r, 0, n, type, device),
                  name_of("all_gather in place", type, n));
}

void check_reduce_scatter(Comm& comm, c10::Device device, at::ScalarType type, int64_t n, bool allocated) {
  const int64_t total = n * comm.size();
  auto input = pattern(comm.rank(), 0, total, type, device);
  if (allocated) {
    auto buffer = comm.allocate(MemoryUse::reduce, total, type);
    buffer.copy_(input);
    input = buffer;
  }
  auto output = at::full({n}, 9, input.options());
  comm.reduce_scatter(output, input, ReduceOp::sum, 1.0, "sum").wait();
  require_equal(output, sum_of_patterns(comm.size(), comm.rank() * n, n, type, device),
                name_of("reduce_scatter", type, n));
  require_equal(input, pattern(comm.rank(), 0, total, type, device),
                name_of("reduce_scatter's input", type, n));
}

// Averages and scales: exact for powers of two, rounded once otherwise.
void check_scaled(Comm& comm, c10::Device device, at::ScalarType type, int64_t n) {
  if (c10::isIntegralType(type, false)) return;
  const auto input = pattern(comm.rank(), 0, n * comm.size(), type, device);
  auto output = at::empty({n}, input.options());
  comm.reduce_scatter(output, input, ReduceOp::average, 0.5, "average").wait();
  const auto sum = sum_of_patterns(comm.size(), comm.rank() * n, n, at::kDouble, device);
  const double tolerance = type == at::kBFloat16 ? 1e-2
                           : type == at::kHalf   ? 1e-3
                                                 : 1e-6;  // the type's own rounding
  require(at::allclose(output.to(at::kDouble), sum * (0.5 / comm.size()), tolerance, tolerance),
          name_of("average", type, n));
}

void check_all_reduce(Comm& comm, c10::Device device, at::ScalarType type, int64_t n) {
  auto tensor = pattern(comm.rank(), 0, n, type, device);
  comm.all_reduce(tensor, ReduceOp::sum, "all").wait();
  require_equal(tensor, sum_of_patterns(comm.size(), 0, n, type, device), name_of("all_reduce", type, n));
}

void check_broadcast(Comm& comm, c10::Device device, at::ScalarType type, int64_t n) {
  const int root = comm.size() - 1;
  auto tensor = pattern(comm.rank(), 0, n, type, device);
  comm.broadcast(tensor, root, "from the last").wait();
  require_equal(tensor, pattern(root, 0, n, type, device), name_of("broadcast", type, n));
}

at::Tensor tree(const std::vector<at::Tensor>& parts, size_t first, size_t last) {
  if (last - first == 1) return parts[first];
  size_t left = 1;
  while (left * 2 < last - first) left *= 2;
  return tree(parts, first, first + left) + tree(parts, first + left, last);
}

bool throws(const std::function<void()>& fn, const std::string& word) {
  try {
    fn();
  } catch (const std::exception& error) {
    return std::string(error.what()).find(word) != std::string::npos;
  }
  return false;
}

}  // namespace

void check_collectives(World& world, const Conduct& conduct) {
  auto comm = Comm::create(world, conduct.options);
  require(comm.rank() == world.rank() && comm.size() == world.size(), "rank and size are the world's");
  for (const auto type : kTypes) {
    for (const int64_t n : part_sizes(type, comm.size())) {
      check_gather(comm, world.device(), type, n, false);
      check_gather(comm, world.device(), type, n, true);
      check_gather_in_place(comm, world.device(), type, n);
      check_reduce_scatter(comm, world.device(), type, n, false);
      check_reduce_scatter(comm, world.device(), type, n, true);
      check_scaled(comm, world.device(), type, n);
      check_all_reduce(comm, world.device(), type, n);
      check_broadcast(comm, world.device(), type, n);
    }
  }
  comm.barrier();
}

void check_repeatable_bits(World& world, const Conduct& conduct) {
  auto comm = Comm::create(world, conduct.options);
  require(comm.sums_in_order() == conduct.tree_sums, "the backend says whether it sums along the tree");
  constexpr int64_t kPart = 50001;
  std::vector<at::Tensor> inputs;
  for (int r = 0; r < comm.size(); ++r) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + r));
    inputs.push_back(at::randn({kPart * comm.size()}, generator, at::kFloat));
  }
  const auto mine = inputs[static_cast<size_t>(comm.rank())].to(world.device());
  const auto want = tree(inputs, 0, inputs.size());
  for (int round = 0; round < 3; ++round) {
    auto part = at::empty({kPart}, mine.options());
    comm.reduce_scatter(part, mine, ReduceOp::sum, 1.0, "bits").wait();
    auto whole = mine.clone();
    comm.all_reduce(whole, ReduceOp::sum, "bits").wait();
    if (!conduct.tree_sums) {
      require(at::allclose(whole.cpu(), want, 1e-4, 1e-4), "sums are right to rounding");
      continue;
    }
    require_equal(part, want.narrow(0, comm.rank() * kPart, kPart), "reduce_scatter follows the tree");
    require_equal(whole, want, "all_reduce follows the tree");
  }
}

void check_allocated_memory(World& world, const Conduct& conduct) {
  auto comm = Comm::create(world, conduct.options);
  constexpr int64_t kPart = 300;
  const int64_t total = kPart * comm.size();
  auto arena = comm.allocate(MemoryUse::gather, 4 * total, at::kFloat);
  require(reinterpret_cast<uintptr_t>(arena.data_ptr()) % 256 == 0, "allocated memory is 256-byte aligned");
  require(arena.cpu().eq(0).all().item<bool>(), "allocated memory is zero");
  comm.barrier();
  // The same slot twice, then one that overlaps it by half: nobody may see a value of the next round.
  for (int round = 0; round < 60; ++round) {
    auto slot = arena.narrow(0, (round / 2 % 3) * total / 2, total);
    const auto shard = at::full({kPart}, round * 100 + comm.rank(), arena.options());
    comm.all_gather(slot, shard, "slot").wait();
    if ((comm.rank() + round) % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    for (int r = 0; r < comm.size(); ++r)
      require(slot.narrow(0, r * kPart, kPart).eq(round * 100 + r).all().item<bool>(),
              "round " + std::to_string(round) + " is whole");
    if (round % 2 == 0) comm.release(slot);
  }
  // The shard is cast to the slot's type.
  auto narrow_slot = comm.allocate(MemoryUse::gather, total, at::kBFloat16);
  comm.all_gather(narrow_slot, at::full({kPart}, 1.00390625f, arena.options()), "cast").wait();
  require(narrow_slot.eq(1.0).all().item<bool>(), "fp32 shards are rounded to the bf16 slot");
  // Shards that lie in the slot for good: claimed before each write, nobody may see a value of the next
  // round.
  auto home = comm.allocate(MemoryUse::gather, total, at::kFloat);
  auto own = home.narrow(0, comm.rank() * kPart, kPart);
  for (int round = 0; round < 60; ++round) {
    comm.claim(home);
    own.fill_(round * 100 + comm.rank());
    comm.all_gather(home, own, "in place").wait();
    if ((comm.rank() + round) % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    for (int r = 0; r < comm.size(); ++r)
      require(home.narrow(0, r * kPart, kPart).eq(round * 100 + r).all().item<bool>(),
              "in place, round " + std::to_string(round));
    if (round % 2 == 0) comm.release(home);
  }
  // A reduce buffer used in turns.
  auto buffer = comm.allocate(MemoryUse::reduce, total, at::kFloat);
  auto output = at::empty({kPart}, arena.options());
  for (int round = 0; round < 30; ++round) {
    comm.claim(buffer);
    buffer.fill_(round + comm.rank());
    comm.reduce_scatter(output, buffer, ReduceOp::sum, 1.0, "buffer").wait();
    const int sum = round * comm.size() + comm.size() * (comm.size() - 1) / 2;
    require(output.eq(sum).all().item<bool>(), "reduce round " + std::to_string(round));
  }
}

void check_work_in_flight(World& world, const Conduct& conduct) {
  auto comm = Comm::create(world, conduct.options);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(world.device());
  constexpr int64_t kPart = 40000;
  // Issued together, waited for in another order, one dropped.
  std::vector<at::Tensor> slots;
  std::vector<Work> works;
  for (int i = 0; i < 8; ++i) {
    slots.push_back(at::empty({kPart * comm.size()}, options));
    works.push_back(comm.all_gather(slots.back(), at::full({kPart}, i * 10 + comm.rank(), options), "many"));
  }
  works.erase(works.begin() + 2);
  for (auto it = works.rbegin(); it != works.rend(); ++it) it->wait();
  for (int i = 0; i < 8; ++i)
    for (int r = 0; r < comm.size(); ++r)
      require(slots[static_cast<size_t>(i)].narrow(0, r * kPart, kPart).eq(i * 10 + r).all().item<bool>(),
              "gather " + std::to_string(i));
  // More than may be pending.
  std::vector<at::Tensor> sums;
  std::vector<Work> many;
  for (int i = 0; i < 150; ++i) {
    sums.push_back(at::full({5}, i, options));
    many.push_back(comm.all_reduce(sums.back(), ReduceOp::sum, "many sums"));
  }
  for (auto& work : many) work.wait();
  for (int i = 0; i < 150; ++i)
    require(sums[static_cast<size_t>(i)].eq(i * comm.size()).all().item<bool>(), "sum " + std::to_string(i));
}

void check_messages(World& world, const Conduct& conduct) {
  auto comm = Comm::create(world, conduct.options);
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int before = (comm.rank() + comm.size() - 1) % comm.size();
  for (const auto type : kTypes) {
    for (const int64_t n : {1, 7, 300000}) {
      const auto out = pattern(comm.rank(), 0, n, type, world.device());
      auto in = at::empty_like(out);
      auto sending = comm.send(out, next, "ring");
      auto receiving = comm.recv(in, before, "ring");
      sending.wait(kWait);
      receiving.wait(kWait);
      require_equal(in, pattern(before, 0, n, type, world.device()), name_of("ring", type, n));
    }
  }
  comm.barrier();
}

void check_split(World& world, const Conduct& conduct) {
  auto comm = Comm::create(world, conduct.options);
  auto half = comm.split(comm.rank() % 2);
  require(half.rank() == comm.rank() / 2, "ranks of a colour keep their order");
  require(half.size() == (comm.size() + 1 - comm.rank() % 2) / 2, "a group has the ranks of its colour");
  auto tensor = at::full({3}, comm.rank(), at::TensorOptions().dtype(at::kFloat).device(world.device()));
  half.all_reduce(tensor, ReduceOp::sum, "half").wait();
  int sum = 0;
  for (int r = comm.rank() % 2; r < comm.size(); r += 2) sum += r;
  require(tensor.eq(sum).all().item<bool>(), "a group sums its own ranks");
  auto alone = comm.split(comm.rank());
  require(alone.size() == 1, "own colours are groups of one");
  alone.barrier();
  comm.barrier();
}

void check_stats(World& world, const Conduct& conduct) {
  auto comm = Comm::create(world, conduct.options);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(world.device());
  auto slot = at::empty({10 * comm.size()}, options);
  for (int i = 0; i < 3; ++i) comm.all_gather(slot, at::ones({10}, options), "counted").wait();
  comm.barrier();
  const auto rows = comm.stats();
  require(rows.size() == 2 && rows[0].op == "all_gather" && rows[1].op == "barrier",
          "one row per operation used");
  require(rows[0].count == 3 && rows[0].bytes == 3 * 40 * comm.size(), "counts and bytes of the full buffer");
  require(rows[0].seconds > 0 && rows[1].seconds > 0, "time is counted");
}

void check_refusals(World& world, const Conduct& conduct) {
  auto comm = Comm::create(world, conduct.options);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(world.device());
  const auto slot = at::zeros({4 * comm.size()}, options);
  require(throws([&] { (void)comm.all_gather(slot, at::zeros({5}, options), "u"); },
                 "must be " + std::to_string(5 * comm.size())),
          "sizes are checked");
  require(throws(
              [&] {
                (void)comm.all_gather(at::zeros({4 * comm.size(), 2}, options).t(), slot, "u");
              },
              "not contiguous"),
          "strides are checked");
  require(
      throws([&] { (void)comm.all_reduce(slot.to(at::kInt), ReduceOp::sum, "u"); }, "cannot be communicated"),
      "types are checked");
  require(
      throws([&] { (void)comm.all_reduce(slot.to(at::kLong), ReduceOp::average, "u"); }, "only be summed"),
      "integers have no average");
  require(throws([&] { (void)comm.broadcast(slot, comm.size(), "u"); }, "is not in this group"),
          "roots are checked");
  require(throws([&] { (void)comm.send(slot, comm.rank(), "u"); }, "itself"), "no message to oneself");
  require(throws([&] { (void)comm.all_reduce(at::Tensor(), ReduceOp::sum, "u"); }, "undefined"),
          "undefined tensors are refused");
  require(throws([&] { (void)comm.split(-1); }, "negative"), "colours are checked");
  comm.barrier();  // a refused call has not touched the group
}

void check_everything(World& world, const Conduct& conduct) {
  check_collectives(world, conduct);
  check_repeatable_bits(world, conduct);
  check_allocated_memory(world, conduct);
  check_work_in_flight(world, conduct);
  check_messages(world, conduct);
  check_split(world, conduct);
  check_stats(world, conduct);
  check_refusals(world, conduct);
}

}  // namespace fsdp::testing
