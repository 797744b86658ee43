// A mistake, what is said to it, and what holds afterwards.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "behaviour/misuse_net.h"

namespace fsdp::testing {

enum class Told { error, warning };
// What holds after it: training goes on to the same bits, or at all, or the module is beyond repair.
enum class After { unharmed, trains, broken };

struct Misuse {
  std::string name;
  std::function<void(Play&)> does;
  std::vector<std::string> words;  // all of them are said
  std::vector<int> ranks = {1, 2};
  Told told = Told::error;
  After after = After::unharmed;
  std::function<void(Play&)> undo = {};
};

// Where most answers send a user.
inline const std::string kWays = "model.full_params()";

// Runs `act` inside forward.
std::function<void(Play&)> in_forward(const std::function<void(PlayNet&)>& act);

// Makes each mistake in the middle of a training, on each number of ranks.
void expect_answers(const std::vector<Misuse>& table);

}  // namespace fsdp::testing
