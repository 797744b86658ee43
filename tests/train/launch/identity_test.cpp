// What a process is under each launcher, and which environments are refused.
#include "app/launch/identity.h"

#include <gmock/gmock.h>

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void expect_rank(const Environment& environment, int rank, int local_rank, int size,
                 const Request& request = {}) {
  const Identity me = find_identity(environment, request);
  EXPECT_EQ(me.role, Role::rank) << me.source;
  EXPECT_EQ(me.rank, rank);
  EXPECT_EQ(me.local_rank, local_rank);
  EXPECT_EQ(me.world_size, size);
}

void expect_refused(const Environment& environment, const ::testing::Matcher<std::string>& message,
                    const Request& request = {}) {
  try {
    find_identity(environment, request);
    ADD_FAILURE() << "accepted";
  } catch (const LaunchError& error) {
    EXPECT_THAT(std::string(error.what()), message);
  }
}

TEST(Identity, AloneWithoutALauncher) {
  const Identity me = find_identity({{"HOME", "/root"}}, {});
  EXPECT_EQ(me.role, Role::alone);
  EXPECT_EQ(me.master_addr, "127.0.0.1");
  EXPECT_EQ(me.master_port, 0);
  EXPECT_EQ(find_identity({{"RANK", ""}, {"NODE_RANK", ""}}, {}).role, Role::alone) << "empty: not set";
  EXPECT_EQ(find_identity({{"MASTER_PORT", "29500"}}, {}).role, Role::alone);
}

TEST(Identity, RankOfTorchrunRayOrKubernetes) {
  expect_rank({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"NODE_RANK", "2"}}, 5, 1, 8,
              {.nodes = 4});
  expect_rank({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, 1, -1, 2);
}

TEST(Identity, RankOfSrunOpenMpiAndMpich) {
  expect_rank({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}},
              3, 1, 4, {.nodes = 2});
  expect_rank(
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}, 2,
      0, 4);
  expect_rank({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}}, 1, 1, 2);
}

TEST(Identity, LaunchersSayHowManyRanksANodeHas) {
  const auto local_size = [](const Environment& environment) {
    return find_identity(environment, {}).local_size;
  };
  EXPECT_EQ(local_size({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}}), 4);
  EXPECT_EQ(local_size({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), 0) << "Kubernetes does not";
  EXPECT_EQ(local_size({{"OMPI_COMM_WORLD_RANK", "2"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
            2);
  EXPECT_EQ(local_size({{"PMI_RANK", "1"}, {"PMI_SIZE", "6"}, {"MPI_LOCALNRANKS", "3"}}), 3);
  const auto slurm = [&](const std::string& list) {
    return local_size({{"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "3"},
                       {"SLURM_NTASKS", "8"},
                       {"SLURM_STEP_TASKS_PER_NODE", list}});
  };
  EXPECT_EQ(slurm("4(x2)"), 4);
  EXPECT_EQ(slurm("8"), 8);
  EXPECT_EQ(slurm("3(x2),2"), 0) << "not one number";
  EXPECT_EQ(slurm("many"), 0);
}

TEST(Identity, AShellOfSrunIsNoRank) {
  Environment shell = {{"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "0"},
                       {"SLURM_NTASKS", "16"},
                       {"SLURM_STEP_NUM_TASKS", "1"},
                       {"SLURM_PTY_PORT", "35001"}};
  EXPECT_EQ(find_identity(shell, {}).role, Role::alone);
  shell["SLURM_STEP_NUM_TASKS"] = "16";
  EXPECT_EQ(find_identity(shell, {}).role, Role::rank) << "a step that was started from such a shell";
}

TEST(Identity, BatchScriptIsNoRank) {
  const Environment script = {{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}};
  EXPECT_EQ(find_identity(script, {}).role, Role::alone) << "outside of a step SLURM_PROCID means nothing";
}

TEST(Identity, MpirunInsideASlurmStep) {
  expect_rank({{"SLURM_STEP_ID", "0"},
               {"SLURM_PROCID", "0"},
               {"SLURM_NTASKS", "2"},
               {"OMPI_COMM_WORLD_RANK", "3"},
               {"OMPI_COMM_WORLD_SIZE", "4"}},
              3, -1, 4);
}

TEST(Identity, NodeOfSeveral) {
  const Environment node = {{"NODE_RANK", "1"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
  const Identity me = find_identity(node, {.nodes = 2});
  EXPECT_EQ(me.role, Role::node);
  EXPECT_EQ(me.node_rank, 1);
  EXPECT_EQ(me.master_addr, "node0");
  EXPECT_EQ(me.master_port, 29500);
  Environment task = node;
  task.merge(Environment{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(find_identity(task, {.nodes = 2}).role, Role::node) << "srun started one task per node";
}

TEST(Identity, RefusesSeveralNodesWithoutNodeRank) {
  expect_refused({},
                 AllOf(HasSubstr("2 nodes, but NODE_RANK is not set"),
                       HasSubstr("node 0:  MASTER_ADDR=gpu7 MASTER_PORT=29500 NODE_RANK=0 fsdp train -x"),
                       HasSubstr("node 1:  MASTER_ADDR=gpu7 MASTER_PORT=29500 NODE_RANK=1 fsdp train -x")),
                 {.nodes = 2, .command = "fsdp train -x", .host = "gpu7"});
  expect_refused({{"NODE_RANK", "0"}, {"MASTER_ADDR", "node0"}}, HasSubstr("MASTER_PORT is not"),
                 {.nodes = 2});
  expect_refused({{"NODE_RANK", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
                 HasSubstr("NODE_RANK=2 is not below the number of nodes, 2"), {.nodes = 2});
}

TEST(Identity, RefusesRankAloneOnSeveralNodesWithBothReadings) {
  expect_refused(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}},
      AllOf(HasSubstr("started this process as rank 1"), HasSubstr("1 is the number of this node")),
      {.nodes = 2});
}

TEST(Identity, RefusesContradictions) {
  expect_refused({{"RANK", "1"}}, HasSubstr("RANK=1 is set but WORLD_SIZE is not"));
  expect_refused({{"RANK", "4"}, {"WORLD_SIZE", "4"}}, HasSubstr("RANK=4 is not below WORLD_SIZE=4"));
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}},
                 HasSubstr("a local rank is never above the rank"));
  expect_refused({{"LOCAL_RANK", "0"}}, HasSubstr("LOCAL_RANK=0 is set but RANK is not"));
  expect_refused({{"WORLD_SIZE", "8"}}, HasSubstr("4 ranks were asked for"), {.ranks = 4});
  expect_refused({{"NODE_RANK", "0"},
                  {"MASTER_ADDR", "a"},
                  {"MASTER_PORT", "1"},
                  {"SLURM_STEP_ID", "0"},
                  {"SLURM_PROCID", "1"},
                  {"SLURM_NTASKS", "8"}},
                 HasSubstr("srun started 8 processes (SLURM_NTASKS)"), {.nodes = 2});
}

TEST(Identity, RefusesWhatIsNoNumber) {
  for (const char* value : {"one", "-1", "1.5", "99999999999"})
    expect_refused({{"RANK", value}, {"WORLD_SIZE", "4"}},
                   HasSubstr(std::string("RANK=") + value + " is not a whole number"));
  expect_refused({{"NODE_RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}},
                 HasSubstr("MASTER_PORT=70000 is not a whole number from 1 to 65535"), {.nodes = 2});
}

}  // namespace
}  // namespace fsdp::launch
