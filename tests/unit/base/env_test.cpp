#include "base/env.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>

#include "support/ranks.h"

namespace fsdp::testing {
namespace {

using detail::env_flag;
using detail::env_int;
using ::testing::HasSubstr;

TEST(Env, UnsetAndEmptyAreNothing) {
  const ScopedEnv unset("FSDP_T", nullptr);
  EXPECT_FALSE(env_int("FSDP_T"));
  const ScopedEnv empty("FSDP_T", "");
  EXPECT_FALSE(env_int("FSDP_T"));
}

TEST(Env, ReadsWholeNumbersOnly) {
  const ScopedEnv good("FSDP_T", "17");
  EXPECT_EQ(env_int("FSDP_T"), 17);
  for (const char* bad : {"x", "1x", " 1", "1.0", "-1", "99999999999"}) {
    const ScopedEnv set("FSDP_T", bad);
    try {
      env_int("FSDP_T");
      ADD_FAILURE() << bad << " was taken";
    } catch (const RendezvousError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string("FSDP_T='") + bad + "'"));
    }
  }
}

TEST(Env, FlagsAreForgiving) {
  for (const char* yes : {"1", "True", "YES", "on"}) {
    const ScopedEnv set("FSDP_T", yes);
    EXPECT_TRUE(env_flag("FSDP_T")) << yes;
  }
  for (const char* no : {"0", "False", "", "2"}) {
    const ScopedEnv set("FSDP_T", no);
    EXPECT_FALSE(env_flag("FSDP_T")) << no;
  }
}

}  // namespace
}  // namespace fsdp::testing
