#include "launch/identity.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <map>
#include <memory>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using detail::find_identity;
using detail::Identity;
using ::testing::HasSubstr;

// The variables any launcher sets, unset for the life of the object except for those given.
class Launcher {
 public:
  explicit Launcher(const std::map<std::string, std::string>& set) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID",
                             "SLURM_STEP_ID",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_NODELIST",
                             "SLURM_STEP_NUM_NODES",
                             "SLURM_NNODES",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS"}) {
      const auto it = set.find(name);
      vars_.push_back(std::make_unique<ScopedEnv>(name, it == set.end() ? nullptr : it->second.c_str()));
    }
  }

 private:
  std::vector<std::unique_ptr<ScopedEnv>> vars_;
};

std::string refusal(const std::map<std::string, std::string>& set, const InitOptions& options = {}) {
  const Launcher launcher(set);
  try {
    find_identity(options);
  } catch (const RendezvousError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Identity, AloneWithoutALauncher) {
  const Launcher none({});
  const Identity me = find_identity({});
  EXPECT_EQ(me.rank, 0);
  EXPECT_EQ(me.size, 1);
  EXPECT_THAT(me.source, HasSubstr("alone"));
}

TEST(Identity, Torchrun) {
  const Launcher torchrun({{"RANK", "3"},
                           {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "host7"},
                           {"MASTER_PORT", "1234"},
                           {"TORCHELASTIC_RUN_ID", "none"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_PROCID", "1"},
                           {"SLURM_NTASKS", "4"}});
  const Identity me = find_identity({});
  EXPECT_EQ(me.rank, 3);
  EXPECT_EQ(me.size, 8);
  EXPECT_EQ(me.local_rank, 1);
  EXPECT_EQ(me.local_size, 2);
  EXPECT_EQ(me.master_addr, "host7");
  EXPECT_EQ(me.master_port, 1234);
  EXPECT_TRUE(me.agent_store);
  EXPECT_THAT(me.source, HasSubstr("torchrun"));
}

TEST(Identity, RestartsOfTorchrunMeetUnderAnotherKey) {
  std::map<std::string, std::string> set{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"TORCHELASTIC_RESTART_COUNT", "0"}};
  const auto key = [&] {
    const Launcher launcher(set);
    return find_identity({}).run_key;
  };
  const std::string first = key();
  set["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_NE(first, key());
}

TEST(Identity, SlurmOnSeveralNodes) {
  const Launcher srun({{"SLURM_STEP_ID", "0"},
                       {"SLURM_JOB_ID", "77"},
                       {"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "8"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                       {"SLURM_STEP_NUM_NODES", "2"}});
  const Identity me = find_identity({});
  EXPECT_EQ(me.rank, 5);
  EXPECT_EQ(me.local_rank, 1);
  EXPECT_EQ(me.master_addr, "gpu03");
  EXPECT_GE(me.master_port, 20000);
  EXPECT_EQ(me.master_port, find_identity({}).master_port);
}

TEST(Identity, InsideABatchScriptWithoutSrunIsAlone) {
  const Launcher batch({{"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(find_identity({}).size, 1);
}

TEST(Identity, MpiOnOneHostNeedsNoAddress) {
  for (const auto& [rank, size, local, locals] :
       {std::tuple("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                   "OMPI_COMM_WORLD_LOCAL_SIZE"),
        std::tuple("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")}) {
    const Launcher mpi({{rank, "2"}, {size, "4"}, {local, "2"}, {locals, "4"}});
    const Identity me = find_identity({});
    EXPECT_EQ(me.rank, 2);
    EXPECT_EQ(me.size, 4);
    EXPECT_EQ(me.master_addr, "127.0.0.1");
  }
}

TEST(Identity, OptionsBeatTheEnvironment) {
  const Launcher torchrun({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "elsewhere"}});
  const Identity me = find_identity({.rank = 1, .world_size = 2, .master_addr = "here", .master_port = 5});
  EXPECT_EQ(me.rank, 1);
  EXPECT_EQ(me.size, 2);
  EXPECT_EQ(me.master_addr, "here");
  EXPECT_EQ(me.master_port, 5);
}

TEST(Identity, RefusesInWords) {
  EXPECT_THAT(refusal({{"RANK", "1"}}), HasSubstr("RANK is set but WORLD_SIZE is not"));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "4"}}), HasSubstr("WORLD_SIZE is set but RANK is not"));
  EXPECT_THAT(refusal({{"RANK", "one"}, {"WORLD_SIZE", "4"}}), HasSubstr("RANK='one'"));
  EXPECT_THAT(refusal({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), HasSubstr("RANK='-1'"));
  EXPECT_THAT(refusal({{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}}),
              HasSubstr("rank 4 is not below the world size 4"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE='0'"));
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "3"}, {"MASTER_ADDR", "h"}}),
              HasSubstr("local rank 3 contradicts rank 1"));
  EXPECT_THAT(refusal({{"RANK", "3"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "2"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"MASTER_ADDR", "h"}}),
              HasSubstr("local rank 2 is not below"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}, {"MASTER_ADDR", "h"}}),
              HasSubstr("local world size 3 contradicts"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}}),
              HasSubstr("70000"));
  EXPECT_THAT(
      refusal({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"WORLD_SIZE", "8"}}),
      HasSubstr("contradicts SLURM_NTASKS=4"));
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
              HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal({}, {.rank = 1}), HasSubstr("world_size is not"));
}

TEST(SlurmHosts, FirstOfAList) {
  EXPECT_EQ(detail::first_slurm_host("n1"), "n1");
  EXPECT_EQ(detail::first_slurm_host("n1,n2"), "n1");
  EXPECT_EQ(detail::first_slurm_host("n[03-05,9],m1"), "n03");
  EXPECT_EQ(detail::first_slurm_host("n[7]"), "n7");
  EXPECT_EQ(detail::first_slurm_host("a,n[1-2]"), "a");
}

}  // namespace
}  // namespace fsdp::testing
