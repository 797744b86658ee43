// SHA-256, to print and compare states of models in one short word.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace fsdp::testing {

class Sha256 {
 public:
  void add(const void* data, size_t bytes);
  void add(const at::Tensor& tensor);
  std::string hex();  // once, at the end

 private:
  void block(const unsigned char* bytes);

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char rest_[64] = {};
  size_t waiting_ = 0;
  uint64_t total_ = 0;
};

}  // namespace fsdp::testing
