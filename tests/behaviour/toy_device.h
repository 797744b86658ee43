// A device that is neither CPU nor GPU, as LibTorch's PrivateUse1 under the name "toy", for what must hold on
// any device. Linking toy_device.cpp registers it for the whole program.
//
// Its memory cannot be read by the host: addresses are off by a constant, so what takes them for its own ends
// the process. Data moves by _copy_from only, and operators run on copies of their inputs on the CPU, with
// the bits of the CPU. Streams and events are in order at once; toy_races.h finds waits that are missing.
#pragma once

#include <fsdp/comm.h>

#include <c10/core/Stream.h>

#include <limits>
#include <utility>
#include <vector>

#include "support/ranks.h"

namespace fsdp::testing {

constexpr int kToyDevices = 2;

c10::Device toy_device(int index = 0);
// Which stream was made to wait for which (first, then), since it was last asked.
std::vector<std::pair<c10::StreamId, c10::StreamId>> toy_waits();
// Bytes in use on all toy devices of this process.
int64_t toy_bytes();
// Allocations, and waits of the host for the device, that our own operators made in this process: those that
// run where the observer looks away.
struct ToyCounts {
  int64_t allocations = 0;
  int64_t host_waits = 0;
};
ToyCounts toy_counts();
// From now on an allocation that would make them more than `bytes` throws c10::OutOfMemoryError.
constexpr int64_t kToyUnlimited = std::numeric_limits<int64_t>::max();
void toy_limit(int64_t bytes);

// Moves data of toy devices through copies on the host and gloo.
c10::intrusive_ptr<::c10d::Backend> make_toy_backend(const c10::intrusive_ptr<::c10d::Store>& store, int rank,
                                                     int size);
inline const CommOptions kToyComm{.backend = BackendKind::c10d, .c10d = make_toy_backend};

// Ranks are processes, each on a device of its own. In one process they would meet LibTorch's one thread per
// device for backward.
inline void on_toy_ranks(int ranks, const RankBody& body) {
  run_processes(ranks, body, c10::Device(c10::kPrivateUse1));
}

}  // namespace fsdp::testing
