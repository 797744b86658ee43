#include "fuzz_files/parsers.h"

#include <fsdp/error.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "files/manifest.h"
#include "files/safetensors.h"

namespace fsdp::testing {

namespace {

using detail::Manifest;
using detail::SafetensorsEntry;
using detail::SafetensorsHeader;

class ViewedFile final : public detail::OpenFile {
 public:
  explicit ViewedFile(std::string_view text) : text_(text) {}
  void write(std::span<const std::byte> /*bytes*/, int64_t /*offset*/) override {}
  void read(std::span<std::byte> bytes, int64_t offset) const override {
    if (static_cast<size_t>(offset) + bytes.size() > text_.size())
      throw std::logic_error("read behind the end");
    if (!bytes.empty()) std::memcpy(bytes.data(), text_.data() + offset, bytes.size());
  }
  int64_t size() const override { return static_cast<int64_t>(text_.size()); }
  void sync() override {}
  void close() override {}

 private:
  std::string_view text_;
};

void require(bool sound, const char* what) {
  if (!sound) throw std::logic_error(what);
}

// Tensors fill the data, and the header can be written and read again.
void require_sound(const SafetensorsHeader& header, int64_t file_bytes) {
  int64_t at = 0;
  for (const SafetensorsEntry& one : header.tensors) {
    require(one.begin == at && one.end >= at, "a gap");
    at = one.end;
  }
  require(header.bytes + at == file_bytes, "tensors do not fill the file");
  const std::string again = make_safetensors_header(header.tensors, header.metadata);
  const SafetensorsHeader back =
      detail::parse_safetensors_header(again, static_cast<int64_t>(again.size()) + at, "again");
  require(back.metadata == header.metadata && back.tensors.size() == header.tensors.size(),
          "not the same again");
}

}  // namespace

void fuzz_safetensors(std::string_view input) {
  try {
    const auto size = static_cast<int64_t>(input.size());
    require_sound(read_safetensors_header(ViewedFile(input), "f"), size);
  } catch (const CheckpointError&) {
  }
  if (input.size() < 2) return;
  uint16_t data_bytes = 0;
  std::memcpy(&data_bytes, input.data(), sizeof data_bytes);
  std::string start(8, '\0');
  const uint64_t length = input.size() - 2;
  std::memcpy(start.data(), &length, sizeof length);
  start += input.substr(2);
  try {
    const int64_t file_bytes = static_cast<int64_t>(start.size()) + data_bytes;
    require_sound(detail::parse_safetensors_header(start, file_bytes, "f"), file_bytes);
  } catch (const CheckpointError&) {
  }
}

void fuzz_manifest(std::string_view input) {
  constexpr std::string_view kKey = "\"check\": \"", kEnd = "\"\n}\n";
  const size_t tail = kKey.size() + detail::kHashDigits + kEnd.size();
  if (input.size() >= tail && input.ends_with(kEnd) && input.substr(input.size() - tail).starts_with(kKey))
    input.remove_suffix(tail);
  const std::string hashed = std::string(input) + std::string(kKey);
  const std::string text = hashed + to_hex(detail::hash128(hashed)) + std::string(kEnd);
  try {
    const Manifest manifest = Manifest::parse(text, "m");
    try {
      require(Manifest::parse(manifest.to_text(), "m") == manifest, "not the same again");
    } catch (const CheckpointError& error) {
      throw std::logic_error(error.what());
    }
  } catch (const CheckpointError&) {
  }
}

}  // namespace fsdp::testing
