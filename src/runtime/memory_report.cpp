#include "runtime/memory_report.h"

#include <array>
#include <new>
#include <string>

#include "base/bytes_text.h"
#include "runtime/engine.h"
#include "runtime/memory_advice.h"

namespace fsdp::detail {

namespace {

// CPU allocators throw plain errors.
bool says_no_memory(const std::string& text) {
  for (const char* words : {"can't allocate memory", "not enough memory", "no memory for a tensor"})
    if (text.find(words) != std::string::npos) return true;
  return false;
}

std::string first_line(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  const std::string text = known != nullptr ? known->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::string kinds_text(const Ledger& ledger) {
  constexpr std::array<const char*, kMemoryKinds> kNames = {"shards",
                                                            "gradient shards",
                                                            "slots",
                                                            "slots outside the arena",
                                                            "units saved for backward",
                                                            "gradient buffers",
                                                            "partial sums",
                                                            "encoded shards"};
  std::string text;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind)
    if (const int64_t bytes = ledger[static_cast<MemoryKind>(kind)]; bytes > 0)
      text += (text.empty() ? "" : ", ") + std::string(kNames[kind]) + " " + bytes_text(bytes);
  return text.empty() ? "nothing" : bytes_text(ledger.total()) + ": " + text;
}

}  // namespace

bool is_no_memory(const std::exception& error) {
  if (dynamic_cast<const MemoryError*>(&error) != nullptr) return false;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  return known != nullptr && says_no_memory(known->what_without_backtrace());
}

MemoryError with_report(const Engine& engine, const char* purpose, int64_t bytes,
                        const std::exception& error) {
  const Ledger ledger = engine.ledger();
  std::string text = "fsdp: rank " + std::to_string(engine.world.rank()) + ": no memory for " + purpose;
  if (bytes > 0) text += ", " + bytes_text(bytes) + " (" + std::to_string(bytes) + " bytes)";
  text += ": " + first_line(error) + "\nThe model holds " + kinds_text(ledger) +
          ".\nActivations and optimizer state are not counted.\nWhat would make it fit:";
  for (const std::string& advice : memory_advice(engine, ledger)) text += "\n  " + advice;
  return {text, bytes};
}

std::exception_ptr with_report(const Engine& engine, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& met) {
    if (is_no_memory(met))
      return std::make_exception_ptr(with_report(engine, "an operator that reads a parameter", 0, met));
  } catch (...) {
    return error;
  }
  return error;
}

}  // namespace fsdp::detail
