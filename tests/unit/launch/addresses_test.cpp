#include "launch/addresses.h"

#include <gtest/gtest.h>

namespace fsdp::testing {
namespace {

using detail::is_loopback;
using detail::must_listen_everywhere;

TEST(Addresses, Loopback) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "127.255.0.3", "::1", "::ffff:127.0.1.1"})
    EXPECT_TRUE(is_loopback(address)) << address;
  for (const char* address : {"10.0.0.7", "128.0.0.1", "fe80::1", "::", "0.0.0.0", "node7", ""})
    EXPECT_FALSE(is_loopback(address)) << address;
}

TEST(Addresses, ANameThatOnlyThisMachineResolvesToLoopbackIsServedEverywhere) {
  EXPECT_TRUE(must_listen_everywhere("node7", {"127.0.1.1"}, true)) << "Debian";
  EXPECT_TRUE(must_listen_everywhere("node7", {"::1", "127.0.0.1"}, true));
  EXPECT_TRUE(must_listen_everywhere("node7.cluster", {"127.0.1.1"}, true));
}

TEST(Addresses, EverythingElseIsServedWhereItSays) {
  EXPECT_FALSE(must_listen_everywhere("node7", {"127.0.1.1"}, false)) << "there is no other host";
  EXPECT_FALSE(must_listen_everywhere("node7", {"127.0.1.1", "10.0.0.7"}, true)) << "others reach the second";
  EXPECT_FALSE(must_listen_everywhere("node7", {"10.0.0.7"}, true));
  EXPECT_FALSE(must_listen_everywhere("node7", {}, true));
  for (const char* host : {"127.0.0.1", "127.0.1.1", "::1", "localhost", "localhost.localdomain",
                           "me.localhost", "ip6-localhost"})
    EXPECT_FALSE(must_listen_everywhere(host, {"127.0.0.1"}, true)) << host << " was asked for";
}

}  // namespace
}  // namespace fsdp::testing
