// Tokens that a model can learn, made from a seed.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::data {

// A Markov chain: each token has four successors, chosen by the seed, with probabilities 1/2, 1/4, 1/8 and
// 1/8. A model that has learned it has a loss of about kSyntheticLoss, one that knows nothing of
// ln(vocab_size). The same on every platform. Throws DataError for a vocabulary of fewer than 8 tokens.
std::vector<int32_t> synthetic_tokens(int64_t count, int32_t vocab_size, uint64_t seed);

// Entropy of a step of the chain, in nats: 1.75 ln 2.
inline constexpr double kSyntheticLoss = 1.2130075659799042;

}  // namespace fsdp::data
