// Times the hash of a checkpoint's blocks on one core and prints one JSON line.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "files/hash128.h"
#include "files/manifest.h"

namespace {

using fsdp::detail::kBlockBytes;

constexpr int64_t kBytes = int64_t{256} << 20;  // more than caches hold
constexpr int kRounds = 15;

double round_seconds(const std::vector<std::byte>& data, uint64_t& sum) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t at = 0; at < kBytes; at += kBlockBytes)
    sum += fsdp::detail::hash128({data.data() + at, static_cast<size_t>(kBlockBytes)}).low;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main() {
  std::vector<std::byte> data(static_cast<size_t>(kBytes));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  uint64_t sum = 0;
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) seconds.push_back(round_seconds(data, sum));
  std::sort(seconds.begin(), seconds.end());
  std::printf(
      "{\"bench\":\"checkpoint\",\"impl\":\"hash\",\"op\":\"hash\",\"bytes\":%lld,\"seconds\":%.6f,\"gbps\":%"
      ".3f,"
      "\"sum\":\"%016llx\"}\n",
      static_cast<long long>(kBytes), seconds[kRounds / 2],
      static_cast<double>(kBytes) / seconds[kRounds / 2] / 1e9, static_cast<unsigned long long>(sum));
  return 0;
}
