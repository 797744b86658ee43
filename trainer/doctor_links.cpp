// Links of `fsdp doctor`: messages between pairs of ranks, and the clocks of their hosts.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>

#include "trainer/doctor_ranks.h"

namespace fsdp::train {

namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kLinkLabel = "fsdp doctor: link";

double elapsed_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t wall_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Messages between this rank and `peer`. Both call the same functions, with the roles of sender and receiver.
class Line {
 public:
  Line(const World& world, Comm& comm, int peer) : comm_(comm), peer_(peer), device_(world.device()) {}

  void send(int64_t number) {
    comm_.send(torch::full({1}, number, torch::kLong).to(device_), peer_, kLinkLabel).wait();
  }
  int64_t receive() {
    const at::Tensor number = torch::zeros({1}, at::TensorOptions().dtype(torch::kLong).device(device_));
    comm_.recv(number, peer_, kLinkLabel).wait();
    return number.item<int64_t>();
  }
  // The seconds that `count` messages of `bytes` take to the peer, with its answer.
  double send_bytes(int64_t count, int64_t bytes) {
    send(count);
    send(bytes);
    const at::Tensor data = torch::zeros({bytes}, at::TensorOptions().dtype(torch::kByte).device(device_));
    receive();  // the peer has its memory
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) comm_.send(data, peer_, kLinkLabel).wait();
    receive();
    return elapsed_since(start);
  }
  void receive_bytes() {
    const int64_t count = receive(), bytes = receive();
    const at::Tensor data = torch::zeros({bytes}, at::TensorOptions().dtype(torch::kByte).device(device_));
    send(0);
    for (int64_t i = 0; i < count; ++i) comm_.recv(data, peer_, kLinkLabel).wait();
    data[0].item<uint8_t>();  // waits for the device
    send(0);
  }

 private:
  Comm& comm_;
  int peer_;
  c10::Device device_;
};

constexpr int kPings = 50, kTries = 3;
constexpr int64_t kProbe = int64_t{256} << 10, kLargest = int64_t{8} << 20;

doctor::Link measure(Line& line) {
  doctor::Link link;
  line.send(0);
  line.receive();
  std::vector<double> trips;
  for (int i = 0; i < kPings; ++i) {
    const auto start = Clock::now();
    line.send(i);
    line.receive();
    trips.push_back(elapsed_since(start));
  }
  std::sort(trips.begin(), trips.end());
  link.latency = trips[trips.size() / 2] / 2;
  // A token bucket lets a first burst pass: the second probe counts.
  line.send_bytes(4, kProbe);
  const double rate = static_cast<double>(4 * kProbe) / line.send_bytes(4, kProbe);
  constexpr double kSeconds = 0.1, kMostBytes = 256 << 20;
  const auto total = static_cast<int64_t>(std::min(kSeconds * rate, kMostBytes));
  const int64_t bytes = std::clamp(total, kProbe, kLargest), count = std::max<int64_t>(1, total / bytes);
  for (int i = 0; i < kTries; ++i)  // the best: other programs disturb some
    link.bytes_per_second =
        std::max(link.bytes_per_second, static_cast<double>(count * bytes) / line.send_bytes(count, bytes));
  return link;
}

void be_measured(Line& line) {
  for (int i = 0; i < kPings + 1; ++i) line.send(line.receive());
  for (int i = 0; i < kTries + 2; ++i) line.receive_bytes();
}

}  // namespace

std::vector<int> ends_of_links(const World& world) {
  std::vector<int> ends;
  std::set<std::string> seen;
  for (const Peer& peer : world.peers())
    if (seen.insert(peer.host_id).second) ends.push_back(peer.rank);
  if (ends.size() > 1) return ends;
  ends.clear();
  for (const Peer& peer : world.peers()) ends.push_back(peer.rank);
  return ends;
}

std::string end_name(const World& world, int rank) {
  const Peer& own = world.peers()[static_cast<size_t>(rank)];
  const bool several = std::any_of(world.peers().begin(), world.peers().end(),
                                   [&](const Peer& peer) { return peer.host_id != own.host_id; });
  const bool is_unique = std::none_of(world.peers().begin(), world.peers().end(), [&](const Peer& peer) {
    return peer.hostname == own.hostname && peer.host_id != own.host_id;
  });
  return several && is_unique ? own.hostname : "rank " + std::to_string(rank) + " on " + own.hostname;
}

std::vector<doctor::Link> measure_links(const World& world, Comm& comm, const std::vector<int>& ends) {
  std::vector<doctor::Link> links;
  for (const auto& round : doctor::pair_rounds(static_cast<int>(ends.size()))) {
    for (const auto& [first, second] : round) {
      const int a = ends[static_cast<size_t>(first)], b = ends[static_cast<size_t>(second)];
      if (world.rank() != a && world.rank() != b) continue;
      const int peer = world.rank() == a ? b : a;
      Line line(world, comm, peer);
      for (const int sender : {a, b}) {
        if (world.rank() != sender) {
          be_measured(line);
          continue;
        }
        doctor::Link link = measure(line);
        link.from = end_name(world, sender);
        link.to = end_name(world, peer);
        links.push_back(std::move(link));
      }
    }
    comm.barrier("fsdp doctor: links");
  }
  return links;
}

doctor::Findings check_clocks(const World& world, Comm& comm, const std::vector<int>& ends) {
  doctor::Findings findings;
  constexpr int kClockTries = 10;
  for (const int end : ends) {
    if (end == 0) continue;
    if (world.rank() == end) {
      Line line(world, comm, 0);
      for (int i = 0; i < kClockTries; ++i) {
        line.receive();
        line.send(wall_nanoseconds());
      }
    }
    if (world.rank() != 0) continue;
    Line line(world, comm, end);
    int64_t shortest = INT64_MAX, offset = 0;
    for (int i = 0; i < kClockTries; ++i) {
      const int64_t before = wall_nanoseconds();
      line.send(0);
      const int64_t there = line.receive(), after = wall_nanoseconds();
      if (after - before >= shortest) continue;
      shortest = after - before;
      offset = there - (before + after) / 2;
    }
    findings.push_back(doctor::judge_clock(end_name(world, end), static_cast<double>(offset) / 1e9,
                                           static_cast<double>(shortest) / 2e9));
  }
  return findings;
}

}  // namespace fsdp::train
