// Writes the checkpoint that tests/corpus keeps of the current format, with the values it holds: README.md.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "files/json.h"
#include "support/small_checkpoint.h"

namespace {

std::string hex(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "write_checkpoint FOLDER: writes a small run into FOLDER, which must not exist\n";
    return 2;
  }
  const std::string folder = argv[1];
  if (std::filesystem::exists(folder)) {
    std::cerr << folder << " exists: what an old version wrote is kept; remove it first if that is meant\n";
    return 1;
  }
  fsdp::testing::save_small(fsdp::detail::posix_files(), folder, {.step = 3, .seed = 3, .world = 1});
  fsdp::testing::save_small(fsdp::detail::posix_files(), folder, {.step = 7, .seed = 7, .world = 3});
  std::filesystem::remove(folder + "/.lock");
  fsdp::detail::Json values;
  for (const auto& [step, seed] : {std::pair(3, 3U), std::pair(7, 7U)})
    for (const auto& [name, bytes] : fsdp::testing::small_contents(step, seed).tensors)
      values["step-0000000" + std::to_string(step)][name] = hex(bytes);
  std::ofstream(folder + "/values.json") << values.dump(1) << "\n";
  return 0;
}
