#include "support/ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "launch/enter.h"

namespace fsdp::testing {

void run_ranks(int size, const RankBody& body) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);  // counted per thread; bits of some kernels depend on it
      try {
        detail::Identity me;
        me.rank = rank;
        me.size = size;
        me.source = "run_ranks";
        World world = detail::enter(me, store, {.device = c10::Device(c10::kCPU)});
        body(world);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

std::unique_ptr<detail::RankProcesses> fork_ranks(int size, const RankBody& body, c10::Device device) {
  return std::make_unique<detail::RankProcesses>(size, body, InitOptions{.device = device});
}

void run_processes(int size, const RankBody& body, c10::Device device) {
  run_local(size, body, InitOptions{.device = device});
}

// Asked in a process of its own: one that has seen CUDA cannot fork ranks that use it.
bool gpu_visible() {
  static const bool visible = [] {
    try {
      run_processes(
          1, [](World&) {}, c10::Device(c10::kCUDA, 0));
      return true;
    } catch (const std::exception& error) {
      if (std::string(error.what()).find("none is visible") == std::string::npos) throw;
      return false;
    }
  }();
  return visible;
}

void run_on_gpus(int size, const RankBody& body) {
  if (!gpu_visible()) GTEST_SKIP() << "no GPU is visible";
  run_processes(
      size,
      [&](World& world) {
        // NCCL refuses two ranks on one GPU of one host.
        ::setenv("NCCL_HOSTID", ("host" + std::to_string(world.rank())).c_str(), 0);
        body(world);
      },
      c10::Device(c10::kCUDA, 0));
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("not so: " + what);
}

void run_both(int size, const RankBody& body) {
  run_ranks(size, body);
  run_processes(size, body);
}

std::string refusal(const std::function<void()>& does) {
  try {
    does();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "not refused";
}

void require_words(const std::string& got, const std::string& words) {
  require(got.find(words) != std::string::npos, "'" + got + "' says '" + words + "'");
}

ScopedEnv::ScopedEnv(const char* name, const char* value) : name_(name) {
  if (const char* old = std::getenv(name)) {
    had_ = true;
    old_ = old;
  }
  if (value != nullptr) {
    ::setenv(name, value, 1);
  } else {
    ::unsetenv(name);
  }
}

ScopedEnv::~ScopedEnv() {
  if (had_) {
    ::setenv(name_.c_str(), old_.c_str(), 1);
  } else {
    ::unsetenv(name_.c_str());
  }
}

}  // namespace fsdp::testing
