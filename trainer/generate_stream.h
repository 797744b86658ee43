// Bytes of tokens as text that can be shown at once. Needs no LibTorch.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::train {

// Holds back a character until its last byte is there. All that push() and finish() return together is
// data::replace_invalid_utf8() of all bytes.
class CharacterStream {
 public:
  // The characters that are complete now.
  std::string push(std::string_view bytes);
  // Returns the bytes held back, as U+FFFD.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace fsdp::train
