// The data that a configuration names, as microbatches of tokens.
#pragma once

#include <fsdp/train.h>

#include <memory>
#include <optional>
#include <string>

#include "app/config/settings.h"
#include "trainer/data/batch_reader.h"
#include "trainer/data/tokenizer.h"

namespace fsdp::train {

struct Corpus {
  std::shared_ptr<const data::Dataset> train;
  std::shared_ptr<const data::Dataset> validation;  // null: none
  std::string description;                          // "docs, 161202 tokens"
};

// Opens or makes the data of `settings`: sequences of `length` tokens below `vocab_size`; 0: not known, not
// checked. Every rank does so by itself. Throws data::DataError and IoError.
Corpus open_corpus(const config::Settings& settings, int64_t vocab_size, int64_t length);

// Microbatches of training, read ahead on a thread unless `read_ahead` is 0.
class TokenData : public TrainData {
 public:
  TokenData(const World& world, std::shared_ptr<const data::Dataset> dataset, const BatchNumbers& numbers,
            uint64_t seed, bool shuffle, size_t read_ahead);

  std::vector<Microbatch> batch(int64_t step) override;
  int64_t steps_per_epoch() const override;
  int64_t dropped_per_epoch() const { return static_cast<int64_t>(order_.dropped_per_epoch()); }

 private:
  std::shared_ptr<const data::Dataset> dataset_;
  data::Order order_;
  data::Share share_;
  c10::Device device_;
  std::optional<data::BatchReader> reader_;
};

// The tokenizer of `settings`.
std::unique_ptr<data::Tokenizer> open_settings_tokenizer(const config::Settings& settings);
// The same, if it made the data; null for synthetic data, and for token files that no tokenizer is named for.
std::unique_ptr<data::Tokenizer> open_known_tokenizer(const config::Settings& settings, int64_t vocab_size);

}  // namespace fsdp::train
