// Promise: a dead or silent rank ends every collective with a CommError that names it, on every survivor,
// soon.
#include <ATen/ATen.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "support/leftovers.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using Clock = std::chrono::steady_clock;  // one clock for all processes of the machine
using std::chrono::milliseconds;

constexpr int kRanks = 4;

// What the ranks tell the test, in memory they share with it.
struct Board {
  struct Seat {
    std::atomic<int64_t> rounds;
    std::atomic<int64_t> failed_at;  // nanoseconds; 0: not failed
    std::atomic<int> culprit, fault;
    char op[32], label[32], text[600];
  };
  Seat seats[kRanks];

  static std::shared_ptr<Board> make() {
    void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return {static_cast<Board*>(memory), [](Board* board) { ::munmap(board, sizeof(Board)); }};
  }
};

// One collective on its own buffers, again and again.
struct Traffic {
  Comm& comm;
  at::Tensor slot = comm.allocate(MemoryUse::gather, kNumel, at::kFloat);
  at::Tensor buffer = comm.allocate(MemoryUse::reduce, kNumel, at::kFloat);
  at::Tensor full = at::ones({kNumel});
  at::Tensor part = at::ones({kNumel / kRanks});
  at::Tensor in = at::ones({kNumel});

  static constexpr int64_t kNumel = 400000;

  void run(const std::string& op) {
    if (op == "all_gather") comm.all_gather(slot, part, "t").wait();
    if (op == "all_gather copied") comm.all_gather(full, part, "t").wait();
    if (op == "reduce_scatter") {
      comm.claim(buffer);
      comm.reduce_scatter(part, buffer, ReduceOp::sum, 1.0, "t").wait();
    }
    if (op == "reduce_scatter copied") comm.reduce_scatter(part, full, ReduceOp::sum, 1.0, "t").wait();
    if (op == "all_reduce") comm.all_reduce(full, ReduceOp::average, "t").wait();
    if (op == "broadcast") comm.broadcast(full, 0, "t").wait();
    if (op == "barrier") comm.barrier("t");
    if (op == "send and recv") {
      auto sending = comm.send(full, (comm.rank() + 1) % kRanks, "t");
      comm.recv(in, (comm.rank() + kRanks - 1) % kRanks, "t").wait();
      sending.wait();
    }
  }
};

const char* const kOps[] = {"all_gather", "all_gather copied", "reduce_scatter", "reduce_scatter copied",
                            "all_reduce", "broadcast",         "barrier",        "send and recv"};

void note_failure(Board::Seat& seat, const CommError& error) {
  const int64_t now = Clock::now().time_since_epoch().count();
  seat.culprit = error.details().culprit;
  seat.fault = static_cast<int>(error.details().fault);
  std::strncpy(seat.op, error.details().op.c_str(), sizeof(seat.op) - 1);
  std::strncpy(seat.label, error.details().label.c_str(), sizeof(seat.label) - 1);
  std::strncpy(seat.text, error.what(), sizeof(seat.text) - 1);
  seat.failed_at = now;  // last: the test reads the rest once it is set
}

std::unique_ptr<detail::RankProcesses> start_traffic(const std::shared_ptr<Board>& board,
                                                     const std::string& op, milliseconds timeout) {
  return fork_ranks(kRanks, [board, op, timeout](World& world) {
    Board::Seat& seat = board->seats[world.rank()];
    auto comm = Comm::create(world, {.timeout = timeout});
    try {
      Traffic traffic{comm};
      for (;; ++seat.rounds) traffic.run(op);
    } catch (const CommError& error) {
      note_failure(seat, error);
    }
  });
}

void wait_until(const std::function<bool()>& condition, const char* what) {
  const auto start = Clock::now();
  while (!condition()) {
    ASSERT_LT(Clock::now() - start, milliseconds(20000)) << what;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void wait_for_traffic(const Board& board) {
  wait_until(
      [&] {
        return std::all_of(std::begin(board.seats), std::end(board.seats),
                           [](const auto& seat) { return seat.rounds > 1; });
      },
      "ranks did not start");
}

void wait_for_failures(const Board& board, int victim) {
  wait_until(
      [&] {
        for (int r = 0; r < kRanks; ++r)
          if (r != victim && board.seats[r].failed_at == 0) return false;
        return true;
      },
      "a survivor hangs");
}

void print_distribution(const char* what, std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double q) { return ms[static_cast<size_t>(q * static_cast<double>(ms.size() - 1))]; };
  std::printf("%s: %zu survivors knew after ms: median %.1f, p90 %.1f, p99 %.1f, max %.1f\n", what, ms.size(),
              at(0.5), at(0.9), at(0.99), ms.back());
}

// Kills a random rank at a random moment. Appends how long each survivor took to know.
void kill_one(const char* op, std::mt19937& random, std::vector<double>& latencies) {
  const auto board = Board::make();
  auto ranks = start_traffic(board, op, milliseconds(30000));
  wait_for_traffic(*board);
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
  const int victim = static_cast<int>(random() % kRanks);
  const int64_t killed_at = Clock::now().time_since_epoch().count();
  ranks->signal(victim, SIGKILL);
  wait_for_failures(*board, victim);
  for (int r = 0; r < kRanks; ++r) {
    const Board::Seat& seat = board->seats[r];
    if (r == victim) continue;
    ASSERT_EQ(seat.culprit, victim) << op << ": " << seat.text;
    ASSERT_EQ(static_cast<CommFault>(seat.fault.load()), CommFault::peer_died) << seat.text;
    ASSERT_THAT(seat.text, ::testing::HasSubstr("rank " + std::to_string(victim) + " (host"));
    latencies.push_back(static_cast<double>(seat.failed_at - killed_at) / 1e6);
  }
  ranks->wait_all(milliseconds(5000));
}

TEST(DeadPeer, KilledInEveryCollectiveIsNamedByAllSurvivors) {
  const Leftovers before;
  std::mt19937 random(seed());
  std::vector<double> latencies;
  const int moments = repeats(24, 200);
  for (int i = 0; i < moments; ++i) {
    kill_one(kOps[i % static_cast<int>(std::size(kOps))], random, latencies);
    if (HasFatalFailure()) return;
  }
  print_distribution("killed", latencies);
  std::sort(latencies.begin(), latencies.end());
  EXPECT_LT(latencies[latencies.size() * 99 / 100], 2500) << "ten times the goal of 250 ms";
  EXPECT_EQ(before.found_since(), "");
}

// What processes tell this one: each a number.
class Numbers {
 public:
  Numbers() {
    if (::pipe(ends_.data()) != 0) throw std::runtime_error("no pipe");
  }
  ~Numbers() {
    for (const int end : ends_) ::close(end);
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  void send(pid_t number) const {
    if (::write(ends_[1], &number, sizeof number) != sizeof number) ::_exit(1);
  }
  pid_t receive() const {
    pid_t number = 0;
    if (::read(ends_[0], &number, sizeof number) != sizeof number) ::_exit(1);
    return number;
  }

 private:
  std::array<int, 2> ends_{};
};

// Two ranks that hold memory of a group until they are ended.
std::unique_ptr<detail::RankProcesses> start_holders(const Numbers& ready) {
  return fork_ranks(2, [&ready](World& world) {
    auto comm = Comm::create(world);
    const auto memory = comm.allocate(MemoryUse::gather, 1000, at::kFloat);
    ready.send(world.rank());
    while (true) ::pause();
  });
}

// A program of its own that uses the library; no descendant of this process.
class OtherProgram {
 public:
  OtherProgram() {
    const pid_t between = ::fork();
    if (between == 0) {
      if (::fork() != 0) ::_exit(0);
      told_.send(::getpid());
      go_.receive();
      const auto holders = start_holders(told_);
      while (true) ::pause();
    }
    ::waitpid(between, nullptr, 0);
    pid_ = told_.receive();
  }
  ~OtherProgram() { ::kill(pid_, SIGKILL); }  // its ranks die with it
  OtherProgram(const OtherProgram&) = delete;
  OtherProgram& operator=(const OtherProgram&) = delete;

  void take_memory() const {
    go_.send(0);
    for (int rank = 0; rank < 2; ++rank) told_.receive();
  }

 private:
  Numbers told_, go_;
  pid_t pid_ = 0;
};

TEST(DeadPeer, LeftoversAreNotThoseOfAnotherProgram) {
  const OtherProgram other;
  const Leftovers before;
  other.take_memory();
  EXPECT_EQ(before.found_since(), "");
}

TEST(DeadPeer, LeftoversAreFoundInRanksOfThisTest) {
  const Leftovers before;
  const Numbers ready;
  auto holders = start_holders(ready);
  for (int rank = 0; rank < 2; ++rank) ready.receive();
  EXPECT_THAT(before.found_since(),
              ::testing::AllOf(::testing::HasSubstr("memfd:fsdp"), ::testing::HasSubstr("child process")));
  holders.reset();
  EXPECT_EQ(before.found_since(), "");
}

TEST(DeadPeer, LeftoversAreFoundInOrphansOfThisTest) {
  const Leftovers before;
  const Numbers orphans;
  run_processes(2, [&orphans](World& world) {
    auto comm = Comm::create(world);
    if (world.rank() == 0) return;
    const pid_t orphan = ::fork();
    if (orphan == 0)
      while (true) ::pause();
    orphans.send(orphan);
  });
  const pid_t orphan = orphans.receive();
  EXPECT_THAT(before.found_since(), ::testing::HasSubstr("memfd:fsdp"));
  ::kill(orphan, SIGKILL);
  ::waitpid(orphan, nullptr, 0);
  EXPECT_EQ(before.found_since(), "");
}

TEST(DeadPeer, StoppedRankEndsInATimeoutThatNamesIt) {
  for (const char* op : kOps) {
    const auto board = Board::make();
    auto ranks = start_traffic(board, op, milliseconds(700));
    wait_for_traffic(*board);
    constexpr int kVictim = 2;
    ranks->signal(kVictim, SIGSTOP);
    wait_for_failures(*board, kVictim);
    for (int r = 0; r < kRanks; ++r) {
      if (r == kVictim) continue;
      const Board::Seat& seat = board->seats[r];
      EXPECT_EQ(static_cast<CommFault>(seat.fault.load()), CommFault::timeout) << op << ": " << seat.text;
      EXPECT_EQ(seat.culprit, kVictim) << op << ": " << seat.text;
    }
    ranks->signal(kVictim, SIGKILL);
  }
}

// Survivors of `die` must throw an Error that names rank 1, long before the timeout of a minute.
void expect_named(const std::function<void(World&)>& body) {
  auto ranks = fork_ranks(3, [&](World& world) {
    const auto start = Clock::now();
    std::string text;
    try {
      body(world);
    } catch (const Error& error) {
      text = error.what();
    }
    require(text.find("rank 1 (host") != std::string::npos, "rank 1 is named, not: " + text);
    require(Clock::now() - start < milliseconds(10000), "soon");
  });
  ranks->wait_all(milliseconds(15000));
  for (const int r : {0, 2}) EXPECT_EQ(ranks->outcome(r).exit_code, 0) << ranks->outcome(r).error;
}

TEST(DeadPeer, KilledWhileAGroupIsMade) {
  const CommOptions minute{.timeout = milliseconds(60000)};
  expect_named([&](World& world) {
    if (world.rank() == 1) ::raise(SIGKILL);
    Comm::create(world, minute).barrier();
  });
  expect_named([&](World& world) {
    auto comm = Comm::create(world, minute);
    if (world.rank() == 1) ::raise(SIGKILL);
    comm.split(0);
  });
  expect_named([&](World& world) {
    auto comm = Comm::create(world, minute);
    if (world.rank() == 1) ::raise(SIGKILL);
    comm.allocate(MemoryUse::gather, 1000, at::kFloat);
  });
}

TEST(DeadPeer, IsFoundThoughSignalsKeepComing) {
  expect_named([](World& world) {
    auto comm = Comm::create(world, {.timeout = milliseconds(60000)});
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGALRM, &action, nullptr);
    const itimerval every_ten_ms{.it_interval = {0, 10000}, .it_value = {0, 10000}};
    ::setitimer(ITIMER_REAL, &every_ten_ms, nullptr);
    if (world.rank() == 1) ::raise(SIGKILL);
    comm.barrier();
  });
}

TEST(DeadPeer, IsNamedByWorldRankInASplitGroup) {
  expect_named([](World& world) {
    auto comm = Comm::create(world);
    auto group = comm.split(world.rank() == 0 ? 0 : 1);  // ranks 1 and 2 are 0 and 1 there
    if (world.rank() == 1) ::raise(SIGKILL);
    if (world.rank() == 2) group.barrier();
    comm.barrier();
  });
}

TEST(DeadPeer, ARankThatFinishedAndExitedIsNoFault) {
  run_processes(3, [](World& world) {
    auto comm = Comm::create(world);
    comm.barrier();
    if (world.rank() == 0) return;
    auto tensor = at::ones({4});
    if (world.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(300));
      comm.send(tensor, 2, "late").wait();
    } else {
      comm.recv(tensor, 1, "late").wait();
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
