// Asks a run that is going on.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "trainer/control/control_file.h"

namespace fsdp::control {

// The run does not answer: it has ended, for example.
class NoAnswer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Sends the request `what` ("status", "metrics", "save", "stop") and waits for the answer, an object with
// "ok". Throws NoAnswer. `still_waiting` is called now and then during a wait of more than two seconds.
nlohmann::json ask(const ControlAddress& address, const std::string& what, std::chrono::milliseconds patience,
                   const std::function<void()>& still_waiting = {});

}  // namespace fsdp::control
