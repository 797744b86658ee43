// A user of the installed package.
#include <ATen/ATen.h>
#include <fsdp/fsdp.h>

#include <cstdio>

int main() {
  const auto world = fsdp::init();
  std::printf("fsdp %s, rank %d of %d\n", fsdp::version(), world.rank(), world.size());
  return at::ones({world.size()}).sum().item<int>() == 1 ? 0 : 1;
}
