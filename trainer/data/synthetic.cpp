#include "trainer/data/synthetic.h"

#include <bit>
#include <string>

#include "trainer/data/error.h"
#include "trainer/data/mix.h"

namespace fsdp::data {

std::vector<int32_t> synthetic_tokens(int64_t count, int32_t vocab_size, uint64_t seed) {
  if (vocab_size < 8)
    throw DataError("synthetic data for a vocabulary of " + std::to_string(vocab_size) +
                    " tokens; at least 8 are expected");
  if (count < 0) throw DataError(std::to_string(count) + " synthetic tokens were asked for");
  const uint64_t chain = mix(seed), draws = mix(chain);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  uint64_t token = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    // 0, 1, 2 and 3 with probabilities 1/2, 1/4, 1/8 and 1/8.
    const auto choice = static_cast<uint64_t>(std::countr_zero(mix(draws + i) | 8));
    token = mix(chain ^ mix(4 * token + choice)) % static_cast<uint64_t>(vocab_size);
    tokens[i] = static_cast<int32_t>(token);
  }
  return tokens;
}

}  // namespace fsdp::data
