// Ranks for tests: as threads (run_ranks), or as processes that can really be killed (fork_ranks).
#pragma once

#include <fsdp/fsdp.h>

#include <functional>
#include <memory>
#include <string>

#include "launch/rank_processes.h"
#include "support/repeats.h"  // IWYU pragma: export

namespace fsdp::testing {

using RankBody = std::function<void(World&)>;

// Runs `body` in `size` threads, as the ranks of one World on the CPU. Rethrows the first exception of any
// rank.
void run_ranks(int size, const RankBody& body);

// Starts `body` in `size` processes. The caller may signal them, and ends them by dropping the result.
std::unique_ptr<detail::RankProcesses> fork_ranks(int size, const RankBody& body,
                                                  c10::Device device = c10::kCPU);

// fork_ranks and wait: throws when a rank failed, with its words.
void run_processes(int size, const RankBody& body, c10::Device device = c10::kCPU);

// Whether a rank finds a GPU.
bool gpu_visible();
// run_processes on GPUs, which ranks may share. Without a GPU the test is skipped.
void run_on_gpus(int size, const RankBody& body);

// As threads, then as processes.
void run_both(int size, const RankBody& body);

// Checks inside ranks throw, since a failed EXPECT would stay in the child process.
void require(bool condition, const std::string& what);

// The words of the c10::Error that `does` throws; "not refused" when it throws none.
std::string refusal(const std::function<void()>& does);
// `got` has `words` in it.
void require_words(const std::string& got, const std::string& words);

// Sets a variable for the life of the object, or unsets it (value null).
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value);
  ~ScopedEnv();
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  std::string name_;
  bool had_ = false;
  std::string old_;
};

}  // namespace fsdp::testing
