#include "checkpoint/errors.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <cxxabi.h>
#include <fsdp/error.h>

#include <typeinfo>

#include "files/json.h"

namespace fsdp::detail {

namespace {

std::string text_of(const char* kind, const std::string& words, const IoError* io = nullptr) {
  Json json = {{"kind", kind}, {"words", words}};
  if (io != nullptr)
    json.update({{"doing", io->doing()}, {"path", io->path()}, {"code", io->code()}, {"more", io->more()}});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The type of the exception being handled.
std::string thrown_type() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  return type == nullptr ? "unknown" : c10::demangle(type->name());
}

}  // namespace

std::string error_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const IoError& error) {
    return text_of("io", error.what(), &error);
  } catch (const CheckpointError& error) {
    return text_of("checkpoint", error.what());
  } catch (const c10::Error& error) {
    return text_of("caller", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return text_of("other", error.what());
  } catch (...) {
    return text_of("other",
                   "a function of the program threw '" + thrown_type() + "', which is not a std::exception");
  }
}

void throw_error(const std::string& text, int rank) {
  const Json json = parse_json(text, "an error of a rank");
  const JsonObject error(json, "an error of a rank");
  const std::string kind = error.text("kind");
  const std::string whose = rank < 0 ? "" : "rank " + std::to_string(rank);
  const std::string words = (whose.empty() ? "" : whose + ": ") + error.text("words");
  if (kind == "io") {
    std::string more = error.text("more");
    if (!whose.empty()) more += (more.empty() ? "on " : ", on ") + whose;
    throw IoError(error.text("doing"), error.text("path"), static_cast<int>(error.integer("code")), more);
  }
  if (kind == "checkpoint") throw CheckpointError(words);
  TORCH_CHECK(kind != "caller", words);
  throw Error(words);
}

}  // namespace fsdp::detail
