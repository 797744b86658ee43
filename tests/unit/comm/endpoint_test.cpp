#include "comm/gloo/endpoint.h"

#include <gmock/gmock.h>

namespace fsdp::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GlooEndpoint, ReadsListsOfInterfaces) {
  EXPECT_THAT(interface_names("eth0"), ElementsAre("eth0"));
  EXPECT_THAT(interface_names("eth0,ib1"), ElementsAre("eth0", "ib1"));
  EXPECT_THAT(interface_names(",eth0,,"), ElementsAre("eth0"));
  EXPECT_THAT(interface_names(""), IsEmpty());
}

TEST(GlooEndpoint, FindsTheAddressThatARouteBeginsAt) {
  EXPECT_EQ(address_toward("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(address_toward("127.1.2.3").substr(0, 4), "127.");
  EXPECT_EQ(address_toward("no.such.host.invalid"), "");
}

}  // namespace
}  // namespace fsdp::detail
