#include "trainer/doctor/network.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "support/temp_folder.h"

namespace fsdp::doctor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<Interface> kThere = {
    {.name = "lo", .address = "127.0.0.1", .is_up = true, .is_loopback = true},
    {.name = "eth0", .address = "10.0.0.1", .is_up = true},
    {.name = "ib0", .address = "10.1.0.1", .is_up = false}};

TEST(Network, LoopbackOfThisMachineIsFound) {
  bool found = false;
  for (const Interface& one : interfaces()) found = found || (one.is_loopback && one.address == "127.0.0.1");
  EXPECT_TRUE(found);
}

TEST(Network, AnUnknownMasterIsAProblem) {
  const Findings found =
      check_names({.machine = "localhost", .variables = {{"MASTER_ADDR", "no-such-host.invalid"}}});
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].level, Level::ok);
  EXPECT_EQ(found[1].level, Level::problem);
  EXPECT_THAT(found[1].text, HasSubstr("MASTER_ADDR no-such-host.invalid: "));
  EXPECT_THAT(found[1].advice, HasSubstr("/etc/hosts"));
}

TEST(Network, LoopbackIsNoPlaceToMeetOtherMachines) {
  NetworkOptions options{
      .machine = "localhost", .several_hosts = true, .variables = {{"MASTER_ADDR", "127.0.0.1"}}};
  Findings found = check_names(options);
  EXPECT_EQ(found[0].level, Level::warning);  // its own name
  EXPECT_EQ(found[1].level, Level::problem);
  EXPECT_THAT(found[1].advice, HasSubstr("the others can reach"));
  options.several_hosts = false;
  for (const Finding& one : check_names(options)) EXPECT_EQ(one.level, Level::ok) << one.text;
}

TEST(Network, APortThatClientsGetMayBeTaken) {
  const fsdp::testing::TempFolder root;
  std::filesystem::create_directories(root.path() + "/proc/sys/net/ipv4");
  std::ofstream(root.path() + "/proc/sys/net/ipv4/ip_local_port_range") << "32768\t60999\n";
  NetworkOptions options{
      .machine = "a", .several_hosts = true, .variables = {{"MASTER_PORT", "40000"}}, .root = root.path()};
  EXPECT_EQ(check_ports(options).level, Level::warning);
  EXPECT_THAT(check_ports(options).advice,
              AllOf(HasSubstr("below 32768"), HasSubstr("ip_local_reserved_ports=40000")));
  options.variables["MASTER_PORT"] = "29500";
  EXPECT_EQ(check_ports(options).level, Level::ok);
  std::ofstream(root.path() + "/proc/sys/net/ipv4/ip_local_port_range") << "50000\t50100\n";
  EXPECT_EQ(check_ports(options).level, Level::warning);
}

TEST(Network, AnInterfaceThatIsNotThere) {
  NetworkOptions options{.machine = "a",
                         .variables = {{"GLOO_SOCKET_IFNAME", "eth7"}, {"NCCL_SOCKET_IFNAME", "ib"}}};
  const Findings found = check_interfaces(options, kThere);
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_EQ(found[0].level, Level::ok);
  EXPECT_THAT(found[1].text, HasSubstr("GLOO_SOCKET_IFNAME=eth7 names no interface that is up"));
  EXPECT_THAT(found[1].advice, HasSubstr("eth0 10.0.0.1"));
  EXPECT_THAT(found[2].text, HasSubstr("NCCL_SOCKET_IFNAME=ib "));  // it is down
  for (const char* fine : {"eth", "=eth0", "^docker", "ens,eth0"}) {
    options.variables = {{"NCCL_SOCKET_IFNAME", fine}};
    EXPECT_THAT(check_interfaces(options, kThere), SizeIs(1)) << fine;
  }
  options.variables = {{"GLOO_SOCKET_IFNAME", "eth"}};
  EXPECT_THAT(check_interfaces(options, kThere), SizeIs(2)) << "gloo takes whole names";
}

TEST(Network, NoLoopbackAndNoNetwork) {
  EXPECT_THAT(check_interfaces({.machine = "a"}, {kThere[1]})[0].advice, HasSubstr("ip link set lo up"));
  const NetworkOptions several{.machine = "a", .several_hosts = true};
  EXPECT_EQ(check_interfaces(several, {kThere[0]})[0].level, Level::problem);
  EXPECT_EQ(check_interfaces({.machine = "a"}, {kThere[0]})[0].level, Level::ok);
}

TEST(Network, VariablesThatSlowARunDown) {
  EXPECT_THAT(check_variables({.machine = "a", .variables = {{"NCCL_P2P_DISABLE", "1"}}}), SizeIs(1));
  EXPECT_THAT(check_variables({.machine = "a", .variables = {{"NCCL_P2P_DISABLE", "0"}}}), IsEmpty());
}

}  // namespace
}  // namespace fsdp::doctor
