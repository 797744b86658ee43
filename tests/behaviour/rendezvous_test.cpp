// Promise: ranks that cannot form a world are refused within the timeout, in words that name the offender.
#include <arpa/inet.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <csignal>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "launch/enter.h"
#include "launch/store.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr milliseconds kTimeout{4000};

int free_port() { return detail::listen_on("127.0.0.1", 0).port; }

// What each participant met: "rank R of W" or the refusal. Each is a thread that calls init() with its own
// options.
std::vector<std::string> meet(const std::vector<InitOptions>& all) {
  std::vector<std::string> words(all.size());
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<World>> worlds(all.size());  // kept until all have met: rank 0 serves the store
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        worlds[i] = std::make_shared<World>(init(all[i]));
        words[i] = "rank " + std::to_string(worlds[i]->rank()) + " of " + std::to_string(worlds[i]->size());
      } catch (const RendezvousError& error) {
        words[i] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return words;
}

InitOptions one(int rank, int size, int port, const std::string& address = "127.0.0.1") {
  return {.rank = rank,
          .world_size = size,
          .master_addr = address,
          .master_port = port,
          .device = c10::Device(c10::kCPU),
          .timeout = kTimeout};
}

TEST(Rendezvous, RanksMeetAndKnowEachOther) {
  run_processes(3, [](World& world) {
    require(world.size() == 3 && world.peers().size() == 3, "all are there");
    require(world.local_rank() == world.rank() && world.local_size() == 3, "all are on this host");
    require(world.hosts().size() == 1, "one host");
    require(world.peers()[static_cast<size_t>(world.rank())].pid == ::getpid(), "peers carry their pid");
    require(world.source() == "run_local", "the source is known");
  });
  const int port = free_port();
  EXPECT_THAT(meet({one(0, 2, port), one(1, 2, port)}), ::testing::ElementsAre("rank 0 of 2", "rank 1 of 2"));
}

TEST(Rendezvous, AloneNeedsNoAddress) {
  const World world = init({.rank = 0, .world_size = 1, .device = c10::Device(c10::kCPU)});
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.local_size(), 1);
  auto comm = Comm::create(world);
  comm.barrier();
}

TEST(Rendezvous, MissingRanksAreNamed) {
  const int port = free_port();
  const auto start = std::chrono::steady_clock::now();
  const auto words = meet({one(0, 4, port), one(2, 4, port)});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10 * kTimeout);
  for (const auto& word : words)
    EXPECT_THAT(word, AllOf(HasSubstr("2 of 4 ranks came"), HasSubstr("missing: rank 1, 3")));
}

TEST(Rendezvous, WithoutRankZeroThereIsNoStore) {
  EXPECT_THAT(meet({one(1, 2, free_port())})[0],
              AllOf(HasSubstr("rank 1 could not reach the store"), HasSubstr("rank 0")));
}

TEST(Rendezvous, ARankThereTwiceIsRefusedAndBothAreNamed) {
  const int port = free_port();
  // Threads share a pid, so that the second claim of one process is told apart from that of two: use two
  // processes.
  auto ranks = fork_ranks(3, [port](World& outer) {
    const int claimed = outer.rank() == 2 ? 1 : outer.rank();
    if (outer.rank() == 2) outer.store()->wait({"first is in"});
    std::string refused;
    std::shared_ptr<World> world;
    try {
      if (outer.rank() == 1) {
        std::thread later([&] {
          std::this_thread::sleep_for(milliseconds(300));
          outer.store()->set("first is in", std::vector<uint8_t>{1});
        });
        world = std::make_shared<World>(init(one(claimed, 2, port)));
        later.join();
      } else {
        world = std::make_shared<World>(init(one(claimed, 2, port)));
      }
    } catch (const RendezvousError& error) {
      refused = error.what();
    }
    outer.store()->add("over", 1);
    while (outer.store()->add("over", 0) < 3) std::this_thread::sleep_for(milliseconds(10));
    if (outer.rank() != 2) return require(refused.empty(), "the first two form a world, not: " + refused);
    require(refused.find("two processes claim to be rank 1") != std::string::npos,
            "refused in words, not: " + refused);
    require(refused.find("pid " + std::to_string(outer.peers()[1].pid)) != std::string::npos,
            "names the first");
    require(refused.find("pid " + std::to_string(::getpid())) != std::string::npos, "names the second");
  });
  ranks->wait_all(milliseconds(5000));
  for (int r = 0; r < 3; ++r) EXPECT_EQ(ranks->outcome(r).exit_code, 0) << ranks->outcome(r).error;
}

TEST(Rendezvous, InitTwiceIsSaidPlainly) {
  const int port = free_port();
  std::shared_ptr<World> zero;
  std::thread other([&] { zero = std::make_shared<World>(init(one(0, 2, port))); });
  const World first = init(one(1, 2, port));
  other.join();
  EXPECT_THAT(meet({one(1, 2, port)})[0], HasSubstr("called fsdp::init() twice"));
  EXPECT_THAT(meet({one(0, 2, port)})[0], HasSubstr("called fsdp::init() before"));
}

// The first program anybody writes: init, say hello, return.
TEST(Rendezvous, RankZeroMayReturnAtOnce) {
  for (int i = 0; i < 10; ++i) {
    const int port = free_port();
    auto ranks = fork_ranks(4, [port](World& outer) { init(one(outer.rank(), 4, port)); });
    ranks->wait_all(milliseconds(5000));
    for (int r = 0; r < 4; ++r)
      EXPECT_EQ(ranks->outcome(r).exit_code, 0) << "rank " << r << ": " << ranks->outcome(r).error;
  }
}

TEST(Rendezvous, ARankOfALargerWorldIsNotTakenForOneOfOurs) {
  const int port = free_port();
  const auto start = std::chrono::steady_clock::now();
  for (const auto& word : meet({one(0, 2, port), one(2, 3, port)}))
    EXPECT_THAT(word, HasSubstr("disagree about the number of ranks"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout) << "said at once";
}

TEST(Rendezvous, WorldSizesMustAgree) {
  const int port = free_port();
  for (const auto& word : meet({one(0, 2, port), one(1, 3, port)}))
    EXPECT_THAT(word, AllOf(HasSubstr("disagree about the number of ranks"), HasSubstr("pid")));
}

TEST(Rendezvous, BuildsMustAgree) {
  const int port = free_port();
  auto store = detail::serve_store("127.0.0.1", detail::listen_on("127.0.0.1", port), kTimeout);
  std::vector<std::string> words(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      detail::Identity me;
      me.rank = r;
      me.size = 2;
      if (r == 1) me.build = "fsdp 9.9.9";
      try {
        detail::enter(me, detail::connect_store("127.0.0.1", port, kTimeout, "rank"),
                      {.device = c10::Device(c10::kCPU), .timeout = kTimeout});
      } catch (const RendezvousError& error) {
        words[static_cast<size_t>(r)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& word : words)
    EXPECT_THAT(word,
                AllOf(HasSubstr("different builds"), HasSubstr("fsdp 9.9.9"), HasSubstr("rank 1 (host")));
}

TEST(Rendezvous, ManyRanksMayOpenManyFiles) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 128;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  meet({one(0, 1, 20000)});
  rlimit after{};
  ::getrlimit(RLIMIT_NOFILE, &after);
  EXPECT_EQ(after.rlim_cur, std::min<rlim_t>(264, before.rlim_max));
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST(Rendezvous, PortInUse) {
  const auto taken = detail::listen_on("127.0.0.1", 0);
  EXPECT_THAT(meet({one(0, 2, taken.port)})[0], AllOf(HasSubstr("127.0.0.1:" + std::to_string(taken.port)),
                                                      HasSubstr("in use"), HasSubstr("MASTER_PORT")));
}

TEST(Rendezvous, AddressesThatDoNotWork) {
  EXPECT_THAT(meet({one(0, 2, -1)})[0], HasSubstr("MASTER_PORT -1 is not a port"));
  EXPECT_THAT(meet({one(0, 2, 20000, "no-such-host.invalid")})[0],
              HasSubstr("'no-such-host.invalid' of the store (MASTER_ADDR) cannot be resolved"));
  EXPECT_THAT(meet({one(1, 2, 20000, "no-such-host.invalid")})[0], HasSubstr("cannot be resolved"));
  EXPECT_THAT(meet({one(0, 2, 20000, "192.0.2.1")})[0],
              HasSubstr("no interface of this host has that address"));
}

// The kernel's table of listening sockets: 0100007F is 127.0.0.1, state 0A is listening.
TEST(Rendezvous, TheStoreListensOnTheAskedInterfaceOnly) {
  const int port = free_port();
  const auto store = detail::serve_store("127.0.0.1", detail::listen_on("127.0.0.1", port), kTimeout);
  char wanted[32];
  std::snprintf(wanted, sizeof(wanted), ":%04X", port);
  std::vector<std::string> listening;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    for (std::string line; std::getline(in, line);) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      if (state == "0A" && local.ends_with(wanted)) listening.push_back(local);
    }
  }
  EXPECT_THAT(listening, ::testing::ElementsAre(std::string("0100007F") + wanted));
}

TEST(Rendezvous, DevicesThatAreNotThereAreRefused) {
  const auto words = [](const char* device) -> std::string {
    const ScopedEnv set("FSDP_DEVICE", device);
    try {
      return init({.rank = 0, .world_size = 1}).device().str();
    } catch (const RendezvousError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(words("cpu"), "cpu");
  EXPECT_THAT(words("gpu7"), HasSubstr("FSDP_DEVICE='gpu7' is not a device"));
  EXPECT_THAT(words("cuda:77"),
              AnyOf(HasSubstr("none is visible"), HasSubstr("cuda:77 was asked for but only")));
}

TEST(RunLocal, SaysWhichRankFailedAndHow) {
  const auto words = [](const RankBody& body) -> std::string {
    try {
      run_local(3, body, {.device = c10::Device(c10::kCPU)});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(words([](World&) {}), "");
  EXPECT_THAT(words([](World& world) {
                if (world.rank() == 1) throw std::runtime_error("the data is missing");
              }),
              AllOf(HasSubstr("rank 1 of 3 failed"), HasSubstr("the data is missing")));
  EXPECT_THAT(words([](World& world) {
                if (world.rank() == 2) ::raise(SIGKILL);
              }),
              HasSubstr("rank 2 of 3 was ended by SIGKILL (signal 9)"));
  EXPECT_THAT(words([](World& world) {
                if (world.rank() == 1) ::_exit(200);
              }),
              HasSubstr("rank 1 of 3 ended with exit code 200"));
  EXPECT_THROW(run_local(0, [](World&) {}), Error);
}

TEST(RunLocal, LongErrorsDoNotBlockIt) {
  try {
    run_local(1, [](World&) { throw std::runtime_error(std::string(200000, 'x')); },
              {.device = c10::Device(c10::kCPU)});
    ADD_FAILURE() << "it failed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("xxxx"));
  }
}

TEST(RunLocal, SeesFailuresThoughSomebodyElseReaps) {
  auto* old = ::signal(SIGCHLD, SIG_IGN);
  EXPECT_THROW(run_local(2, [](World& world) { require(world.rank() != 1, "boom"); },
                         {.device = c10::Device(c10::kCPU)}),
               Error);
  run_local(2, [](World&) {}, {.device = c10::Device(c10::kCPU)});
  ::signal(SIGCHLD, old);
}

}  // namespace
}  // namespace fsdp::testing
