#include "support/sha256.h"

#include <bit>
#include <cstdio>
#include <cstring>

namespace fsdp::testing {

namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

void Sha256::block(const unsigned char* bytes) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = static_cast<uint32_t>(bytes[4 * i] << 24 | bytes[4 * i + 1] << 16 | bytes[4 * i + 2] << 8 |
                                 bytes[4 * i + 3]);
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  uint32_t s[8];
  std::memcpy(s, state_, sizeof(s));
  for (int i = 0; i < 64; ++i) {
    const uint32_t one = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const uint32_t t1 = s[7] + one + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + w[i];
    const uint32_t zero = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const uint32_t t2 = zero + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    for (int k = 7; k > 0; --k) s[k] = s[k - 1];
    s[4] += t1;
    s[0] = t1 + t2;
  }
  for (int i = 0; i < 8; ++i) state_[i] += s[i];
}

void Sha256::add(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  total_ += bytes;
  for (; bytes > 0; --bytes) {
    rest_[waiting_++] = *at++;
    if (waiting_ == 64) {
      block(rest_);
      waiting_ = 0;
    }
  }
}

void Sha256::add(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  add(plain.const_data_ptr(), plain.nbytes());
}

std::string Sha256::hex() {
  const uint64_t bits = total_ * 8;
  const unsigned char end = 0x80, zero = 0;
  add(&end, 1);
  while (waiting_ != 56) add(&zero, 1);
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
  add(length, 8);
  std::string text;
  for (const uint32_t word : state_) {
    char digits[9];
    std::snprintf(digits, sizeof(digits), "%08x", word);
    text += digits;
  }
  return text;
}

}  // namespace fsdp::testing
