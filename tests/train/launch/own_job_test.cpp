// Which runs a restarted job may go on with.
#include "app/launch/own_job.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

namespace fsdp::launch {
namespace {

// The agent that a child of this process finds, or a child of that child.
std::string agent_of_child(bool in_a_shell) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (in_a_shell && ::fork() > 0) {  // the grandchild's parent
      ::wait(nullptr);
      ::_exit(0);
    }
    const std::string agent = find_job({{"TORCHELASTIC_RESTART_COUNT", "1"}}).agent;
    ::_exit(::write(ends[1], agent.data(), agent.size()) < 0 ? 1 : 0);
  }
  ::waitpid(child, nullptr, 0);
  ::close(ends[1]);
  std::string agent(4096, '\0');
  agent.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends[0], agent.data(), agent.size()), 0)));
  ::close(ends[0]);
  return agent;
}

TEST(OwnJob, NoLauncherIsNoJob) {
  const JobIdentity none = find_job({{"HOME", "/root"}});
  EXPECT_FALSE(none.exists());
  EXPECT_FALSE(none.is_restart());
  EXPECT_FALSE(none.restarts(none));
}

TEST(OwnJob, RequeuedSlurmJobIsTheSameJob) {
  const JobIdentity first = find_job({{"SLURM_JOB_ID", "7"}, {"SLURM_CLUSTER_NAME", "a"}});
  const JobIdentity again =
      find_job({{"SLURM_JOB_ID", "7"}, {"SLURM_CLUSTER_NAME", "a"}, {"SLURM_RESTART_COUNT", "2"}});
  EXPECT_TRUE(again.restarts(first));
  EXPECT_EQ(describe(again), "restart 2 of Slurm job 7");
  EXPECT_FALSE(first.restarts(first)) << "a second step of the job is no restart";
  for (const Environment& other :
       {Environment{{"SLURM_JOB_ID", "8"}, {"SLURM_CLUSTER_NAME", "a"}},
        Environment{{"SLURM_JOB_ID", "7"}, {"SLURM_CLUSTER_NAME", "b"}}, Environment{}})
    EXPECT_FALSE(again.restarts(find_job(other)));
}

TEST(OwnJob, AgentIsTheProcessThatStartsRanks) {
  const std::string agent = agent_of_child(false);
  EXPECT_THAT(agent, ::testing::HasSubstr("/" + std::to_string(::getpid()) + "/"));
  EXPECT_EQ(agent_of_child(false), agent) << "of every rank, and after a restart";
  EXPECT_NE(agent_of_child(true), agent) << "the shell has no counter, so it could be an agent";
}

TEST(OwnJob, RestartOfTheSameAgent) {
  const JobIdentity earlier{.agent = "host/boot/12/345"};
  EXPECT_TRUE((JobIdentity{.agent = "host/boot/12/345", .agent_restarts = 1}.restarts(earlier)));
  EXPECT_FALSE((JobIdentity{.agent = "host/boot/12/345"}.restarts(earlier)));
  EXPECT_FALSE((JobIdentity{.agent = "host/boot/13/345", .agent_restarts = 1}.restarts(earlier)));
  EXPECT_FALSE((JobIdentity{.agent_restarts = 1}.restarts({}))) << "unknown agents are not equal";
}

TEST(OwnJob, AgentThatStartsAgainInARequeuedJob) {
  const JobIdentity earlier{.slurm_job = "a/7", .agent = "one"};
  EXPECT_TRUE((JobIdentity{.slurm_job = "a/7", .agent = "two", .slurm_restarts = 1}.restarts(earlier)));
  EXPECT_FALSE((JobIdentity{.slurm_job = "a/8", .agent = "two", .agent_restarts = 1}.restarts(earlier)));
}

}  // namespace
}  // namespace fsdp::launch
