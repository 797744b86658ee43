// Every variable that torchrun sets for a rank, and NODE_RANK.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "app/launch/environment.h"

namespace fsdp::launch {
namespace {

Job two_nodes() {
  return {.argv = {"train"},
          .ranks = 4,
          .nodes = 2,
          .node_rank = 1,
          .master_addr = "node0",
          .master_port = 29500,
          .run_id = "job-7",
          .restart_count = 2,
          .max_restarts = 3};
}

Environment variables(const Job& job, int local_rank, const Environment& own, int processors = 16) {
  return rank_environment(job, local_rank, own, processors, job.master_port,
                          {.error = "/tmp/e.json", .step = "/tmp/e.step"});
}

TEST(UsableProcessors, AreThoseThatAContainerMayUse) {
  const std::filesystem::path group = std::filesystem::path(::testing::TempDir()) / "group_of_a_container";
  std::filesystem::create_directories(group);
  const int all = usable_processors(group);
  const auto with = [&](const char* text) {
    std::ofstream(group / "cpu.max") << text;
    return usable_processors(group);
  };
  EXPECT_EQ(with("max 100000\n"), all);
  EXPECT_EQ(with("100000 100000\n"), 1);
  EXPECT_EQ(with("50000 100000\n"), 1);
  EXPECT_EQ(with("100000000 100000\n"), all);
  std::filesystem::remove_all(group);
}

TEST(UsableGpus, NumbersMayHaveGaps) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "gpus_of_a_container";
  std::filesystem::create_directories(folder);
  for (const char* name : {"nvidia4", "nvidia7", "nvidiactl", "nvidia-uvm", "nvidia", "null"})
    std::ofstream(folder / name) << "";
  EXPECT_EQ(usable_gpus({}, folder), 2);
  EXPECT_EQ(usable_gpus({{"CUDA_VISIBLE_DEVICES", "1"}}, folder), 1) << "CUDA counts without gaps";
  EXPECT_EQ(usable_gpus({{"CUDA_VISIBLE_DEVICES", "0,5,1"}}, folder), 1) << "up to the first that is none";
  EXPECT_EQ(usable_gpus({{"CUDA_VISIBLE_DEVICES", ""}}, folder), 0);
  std::filesystem::remove_all(folder);
}

TEST(RankEnvironment, SetsAllOfTorchrunsVariables) {
  const Environment expected = {{"RANK", "6"},
                                {"ROLE_RANK", "6"},
                                {"LOCAL_RANK", "2"},
                                {"GROUP_RANK", "1"},
                                {"NODE_RANK", "1"},
                                {"WORLD_SIZE", "8"},
                                {"ROLE_WORLD_SIZE", "8"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"GROUP_WORLD_SIZE", "2"},
                                {"ROLE_NAME", "default"},
                                {"MASTER_ADDR", "node0"},
                                {"MASTER_PORT", "29500"},
                                {"OMP_NUM_THREADS", "4"},
                                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                {"FSDP_STEP_FILE", "/tmp/e.step"},
                                {"TORCHELASTIC_RESTART_COUNT", "2"},
                                {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                {"TORCHELASTIC_RUN_ID", "job-7"},
                                {"TORCHELASTIC_ERROR_FILE", "/tmp/e.json"}};
  EXPECT_EQ(variables(two_nodes(), 2, {}), expected);
}

TEST(RankEnvironment, LauncherWinsOverTheJobAndTheJobOverTheProcess) {
  Job job = two_nodes();
  job.environment = {{"COLOUR", "red"}, {"RANK", "99"}};
  const Environment found = variables(job, 0, {{"COLOUR", "blue"}, {"HOME", "/root"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(found.at("COLOUR"), "red");
  EXPECT_EQ(found.at("HOME"), "/root");
  EXPECT_EQ(found.at("RANK"), "4");
  EXPECT_EQ(found.at("WORLD_SIZE"), "8");
}

TEST(RankEnvironment, ThreadsAreTheRanksShareOfTheProcessors) {
  EXPECT_EQ(variables(two_nodes(), 0, {}, 2).at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(variables(two_nodes(), 0, {}, 11).at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(variables(two_nodes(), 0, {{"OMP_NUM_THREADS", "7"}}).at("OMP_NUM_THREADS"), "7");
}

TEST(RankEnvironment, RankZeroServesTheStore) {
  EXPECT_EQ(variables(two_nodes(), 0, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})
                .count("TORCHELASTIC_USE_AGENT_STORE"),
            0U);
}

}  // namespace
}  // namespace fsdp::launch
