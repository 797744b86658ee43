#include "app/launch/error_files.h"

#include <fsdp/error.h>

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace fsdp::launch {

namespace {

using Json = nlohmann::json;

constexpr size_t kMostBytes = 64 * 1024;

std::string string_in(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_last_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// The message of an error file that is JSON; empty: it is something else.
Message parse_json(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("message")) return {};
  const Json& inner = json["message"];
  if (!inner.is_object()) return {.text = string_in(json, "message")};
  Message found{.text = string_in(inner, "message")};
  const auto more = inner.find("extraInfo");
  if (more == inner.end() || !more->is_object()) return found;
  const auto culprit = more->find("culprit");
  if (culprit != more->end() && culprit->is_number_integer()) found.culprit = culprit->get<int>();
  return found;
}

// The number behind the first "rank " of `text` from `at` on that is not `except`; -1: there is none.
int next_rank(const std::string& text, size_t at, int except) {
  constexpr size_t kWord = 5;  // "rank "
  while ((at = text.find("rank ", at)) != std::string::npos) {
    int rank = -1;
    std::from_chars(text.data() + at + kWord, text.data() + text.size(), rank);
    const bool whole_word = at == 0 || std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0;
    if (whole_word && rank >= 0 && rank != except) return rank;
    at += kWord;
  }
  return -1;
}

}  // namespace

int blamed_rank(const std::string& text, int rank) {
  for (const char* mark : {" ms: ", " ms): "}) {
    const size_t reason = text.find(mark);
    const size_t after = text.rfind("after ", reason);
    if (reason == std::string::npos || after == std::string::npos) continue;
    const std::string time = text.substr(after + 6, reason - after - 6);
    if (time.find_first_not_of("0123456789") == std::string::npos) return next_rank(text, reason, rank);
  }
  const size_t missing = text.find("ranks came within ");
  return missing == std::string::npos ? -1 : next_rank(text, text.find("missing: ", missing), rank);
}

Message parse_message(const std::string& text, int rank) {
  Message found = parse_json(text);
  if (found.text.empty() && found.culprit < 0) found.text = text;
  found.text = trimmed(found.text);
  if (found.culprit < 0) found.culprit = blamed_rank(found.text, rank);
  if (found.culprit == rank) found.culprit = -1;
  return found;
}

bool leave_message(const std::string& text) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return false;
  const Json message = {{"message", text},
                        {"extraInfo", {{"timestamp", std::to_string(std::time(nullptr))}}}};
  std::ofstream file(path);
  file << Json{{"message", message}}.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  return file.good() && std::getenv("FSDP_STEP_FILE") != nullptr;
}

ErrorFiles::ErrorFiles() {
  const char* parent = std::getenv("TMPDIR");
  folder_ = std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/fsdp-launch-XXXXXX";
  if (::mkdtemp(folder_.data()) == nullptr)
    throw IoError("create", folder_, errno,
                  "it holds the ranks' error messages; TMPDIR chooses another place");
}

ErrorFiles::~ErrorFiles() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

int64_t ErrorFiles::read_step(int rank) const {
  std::ifstream file(step_path(rank));
  int64_t step = -1;
  return file >> step ? step : -1;
}

Message ErrorFiles::read(int rank) const {
  std::ifstream file(path(rank), std::ios::binary);
  std::string text(kMostBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return parse_message(text, rank);
}

}  // namespace fsdp::launch
