#include "trainer/control/control_file.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "app/launch/fd.h"

namespace fsdp::control {

namespace {
using Json = nlohmann::json;
}

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw IoError("read", "random bytes", errno);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

void write_control_file(const std::string& path, const ControlAddress& address) {
  const std::string text = Json({{"host", address.host},
                                 {"port", address.port},
                                 {"token", address.token},
                                 {"pid", address.pid},
                                 {"run", address.run},
                                 {"machine", address.machine}})
                               .dump(-1, ' ', false, Json::error_handler_t::replace) +
                           "\n";
  const std::string partial = path + ".new";
  ::unlink(partial.c_str());  // of a run that was killed; its mode may be another
  launch::Fd file(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) throw IoError("create", partial, errno);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw IoError("write", partial, errno);
  file.close();
  if (std::rename(partial.c_str(), path.c_str()) != 0) throw IoError("rename", partial, errno);
}

ControlAddress read_control_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw IoError("read", path, errno);
  try {
    const Json json = Json::parse(text);
    return {.host = json.at("host"),
            .port = json.at("port"),
            .token = json.at("token"),
            .pid = json.at("pid"),
            .run = json.at("run"),
            .machine = json.value("machine", "")};
  } catch (const Json::exception&) {
    throw std::runtime_error(path + ": expected what a run writes there, and found something else");
  }
}

}  // namespace fsdp::control
