// Promise: ranks start cheaply and find each other: few requests of the store, no more threads than
// processors, a store that other hosts can reach.
#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <thread>

#include "base/fd.h"
#include "base/host.h"
#include "launch/addresses.h"
#include "launch/enter.h"
#include "support/ranks.h"

namespace fsdp::testing {
namespace {

// Counts what is asked of the store.
class CountingStore final : public ::c10d::Store {
 public:
  explicit CountingStore(detail::StorePtr inner) : inner_(std::move(inner)) {}

  c10::intrusive_ptr<::c10d::Store> clone() override { return c10::make_intrusive<CountingStore>(inner_); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ++requests;
    inner_->set(key, value);
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    ++requests;
    return inner_->compareSet(key, expected, desired);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    ++requests;
    return inner_->get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    ++requests;
    return inner_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    ++requests;
    return inner_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    ++requests;
    return inner_->check(keys);
  }
  int64_t getNumKeys() override {
    ++requests;
    return inner_->getNumKeys();
  }
  void wait(const std::vector<std::string>& keys) override {
    ++requests;
    inner_->wait(keys);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    ++requests;
    inner_->wait(keys, timeout);
  }

  std::atomic<int> requests{0};

 private:
  detail::StorePtr inner_;
};

// By rank. Ranks come one after the other, which is the worst for whoever looks again at each arrival.
std::vector<int> requests_of(int size) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  std::vector<c10::intrusive_ptr<CountingStore>> counting;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) counting.push_back(c10::make_intrusive<CountingStore>(store));
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2 * r));
      detail::Identity me;
      me.rank = r;
      me.size = size;
      detail::enter(me, counting[static_cast<size_t>(r)], {.device = c10::Device(c10::kCPU)});
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<int> requests;
  for (const auto& one : counting) requests.push_back(one->requests);
  return requests;
}

TEST(Launch, RequestsOfTheStoreGrowWithTheRanksAndNotWithTheirSquare) {
  constexpr int kPolls = 60;  // of rank 0 while the others come: a matter of time, not of their number
  for (const int size : {8, 16, 32}) {
    const std::vector<int> requests = requests_of(size);
    int total = 0;
    for (const int n : requests) total += n;
    std::printf("%d ranks: %d requests, rank 0: %d, rank 1: %d\n", size, total, requests[0], requests[1]);
    for (size_t r = 1; r < requests.size(); ++r) EXPECT_LE(requests[r], 8) << "rank " << r << " of " << size;
    EXPECT_LE(requests[0], 4 * size + kPolls) << size;
  }
}

// What a rank of two finds, where this process has `before` threads.
int threads_of_a_rank(int before, std::optional<int> asked) {
  at::set_num_threads(before);
  int found = 0;
  auto ranks = std::make_unique<detail::RankProcesses>(
      2, [](World&) { ::_exit(at::get_num_threads()); },
      InitOptions{.device = c10::Device(c10::kCPU), .threads = asked});
  ranks->wait_all(std::chrono::milliseconds(5000));
  found = ranks->outcome(0).exit_code;
  EXPECT_EQ(ranks->outcome(1).exit_code, found);
  at::set_num_threads(1);
  return found;
}

TEST(Launch, ARankGetsItsShareOfTheProcessors) {
  const ScopedEnv openmp("OMP_NUM_THREADS", nullptr);
  const ScopedEnv mkl("MKL_NUM_THREADS", nullptr);
  const int share = std::max(1, detail::usable_cpus() / 2);
  EXPECT_EQ(threads_of_a_rank(2 * detail::usable_cpus(), {}), share);
  EXPECT_EQ(threads_of_a_rank(1, {}), 1) << "never more than before";
  EXPECT_EQ(threads_of_a_rank(2 * detail::usable_cpus(), share + 2), share + 2) << "InitOptions::threads";
}

TEST(Launch, WhoSetsThreadsByTheEnvironmentKeepsThem) {
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const ScopedEnv set(name, "5");
    EXPECT_EQ(threads_of_a_rank(2 * detail::usable_cpus(), {}), 2 * detail::usable_cpus()) << name;
  }
}

TEST(Launch, ThreadsMustBePositive) {
  try {
    init({.rank = 0, .world_size = 1, .device = c10::Device(c10::kCPU), .threads = 0});
    ADD_FAILURE() << "accepted";
  } catch (const RendezvousError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("InitOptions::threads is 0"));
  }
}

// The first IPv4 address of this machine that others could use; 0: none.
in_addr_t address_of_this_machine() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return 0;
  in_addr_t found = 0;
  for (const ifaddrs* one = list; one != nullptr && found == 0; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const in_addr_t address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr;
    if ((ntohl(address) >> 24) != 127) found = address;
  }
  ::freeifaddrs(list);
  return found;
}

bool reachable(in_addr_t address, int port) {
  const detail::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = address;
  to.sin_port = htons(static_cast<uint16_t>(port));
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

TEST(Launch, TheStoreOfThisMachinesNameIsReachableFromOutside) {
  const in_addr_t address = address_of_this_machine();
  if (address == 0) GTEST_SKIP() << "this machine has no address but loopback";
  const std::string name = detail::host_name();
  std::optional<detail::Listener> listener;
  try {
    listener = detail::listen_on(name, 0, /*several_hosts=*/true);
  } catch (const RendezvousError& error) {
    GTEST_SKIP() << "this machine does not know its own name: " << error.what();
  }
  EXPECT_TRUE(reachable(address, listener->port)) << name;
  const int port = listener->port;
  const auto store = detail::serve_store(name, std::move(*listener), std::chrono::milliseconds(5000));
  store->set("key", std::vector<uint8_t>{1});
  EXPECT_TRUE(
      detail::connect_store("127.0.0.1", port, std::chrono::milliseconds(5000), "a rank")->check({"key"}));
}

TEST(Launch, AStoreOfOneHostStaysOnLoopback) {
  const in_addr_t address = address_of_this_machine();
  if (address == 0) GTEST_SKIP() << "this machine has no address but loopback";
  EXPECT_FALSE(reachable(address, detail::listen_on("127.0.0.1", 0, true).port));
  EXPECT_FALSE(reachable(address, detail::listen_on("localhost", 0, true).port));
}

}  // namespace
}  // namespace fsdp::testing
