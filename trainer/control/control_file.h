// RUN/control.json: where the run that is going on can be asked, and the secret that it asks for.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::control {

struct ControlAddress {
  std::string host = {};  // an address of the machine of rank 0: loopback
  int port = 0;
  std::string token = {};    // whoever can read the file may ask
  int64_t pid = 0;           // of rank 0
  std::string run = {};      // the run's folder
  std::string machine = {};  // name of the machine of rank 0
};

// 128 random bits as text. Throws IoError.
std::string random_token();

std::string host_name();

// Writes the file whole or not at all, readable by its owner only. Throws IoError.
void write_control_file(const std::string& path, const ControlAddress& address);
// Throws IoError if the file cannot be read, std::runtime_error if it holds something else.
ControlAddress read_control_file(const std::string& path);

}  // namespace fsdp::control
