// The main of every test program: one thread per rank, so that forked ranks never meet a half-alive thread
// pool.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  // LibTorch's store asks the DNS for the names of the peers it connects to; where none answers, wait for it
  // briefly.
  ::setenv("RES_OPTIONS", "timeout:1 attempts:1", 0);
  return RUN_ALL_TESTS();
}
