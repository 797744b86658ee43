// A user who compiles in Debug: NDEBUG is not set, and fsdp must not set it.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>

#ifdef NDEBUG
#error "fsdp forces NDEBUG on its users"
#endif

int main() {
  const auto world = fsdp::init();
  std::printf("fsdp %s, rank %d of %d\n", fsdp::version(), world.rank(), world.size());
  const auto x = torch::ones({2, 2}, torch::requires_grad());
  (x * x).sum().backward();
  return torch::equal(x.grad(), torch::full({2, 2}, 2.0)) ? 0 : 1;
}
