#include "behaviour/misuse_cases.h"

#include <chrono>

namespace fsdp::testing {

std::function<void(Play&)> in_forward(const std::function<void(PlayNet&)>& act) {
  return [act](Play& play) {
    play.module().inside = act;
    play.loss();
  };
}

namespace {

// What a rank was told: an error's words, or the warnings.
std::string told(const Misuse& misuse, Play& play) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  try {
    misuse.does(play);
  } catch (const c10::Error& error) {
    return misuse.told == Told::error ? error.what_without_backtrace() : "an error";
  } catch (const std::exception& error) {
    return misuse.told == Told::error ? error.what() : "an error";
  }
  return misuse.told == Told::warning ? warnings.text : "no error";
}

void commit(const Misuse& misuse, int ranks) {
  const State wanted = train_plain(*std::make_shared<PlayNet>(), ranks, 4, Optim::sgd);
  run_ranks(ranks, [&](World& world) {
    const ShardOptions options{.wrap = by_size(100), .comm = {.timeout = std::chrono::seconds(20)}};
    Play play(world, fully_shard(world, std::make_shared<PlayNet>(), options), optimizer_of(Optim::sgd));
    play.train();
    play.train();
    const std::string words = told(misuse, play);
    for (const std::string& word : misuse.words)
      require(words.find(word) != std::string::npos, "said '" + word + "'; it said: " + words);
    if (misuse.undo) misuse.undo(play);
    if (misuse.after == After::broken) return;
    play.train();
    play.train();
    const State state = state_of(play);
    if (misuse.after == After::unharmed) require_same(state, wanted, "unharmed: ");
    for (const auto& [name, value] : state) require(value.isfinite().all().item<bool>(), name + " is finite");
  });
}

}  // namespace

void expect_answers(const std::vector<Misuse>& table) {
  c10::WarningUtils::set_warnAlways(true);
  for (const Misuse& misuse : table)
    for (const int ranks : misuse.ranks) {
      SCOPED_TRACE(misuse.name + ", " + std::to_string(ranks) + " ranks");
      EXPECT_NO_THROW(commit(misuse, ranks));
    }
  c10::WarningUtils::set_warnAlways(false);
}

}  // namespace fsdp::testing
