#include "launch/rendezvous.h"

#include <fsdp/error.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <thread>

#include "base/host.h"

namespace fsdp::detail {

namespace {

constexpr const char* kVerdictKey = "verdict";
constexpr const char* kArrivedKey = "arrived";
constexpr const char* kToldKey = "told";
constexpr const char* kReadKey = "read";
constexpr char kMetVerdict = 'm';
constexpr char kFailedVerdict = 'f';

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string read_key(const StorePtr& store, const std::string& key) {
  const auto bytes = store->get(key);
  return {bytes.begin(), bytes.end()};
}

// One line per fact; none contains a newline.
struct Card {
  int size = 0;
  std::string build;
  Peer peer;

  std::string write() const {
    std::ostringstream out;
    out << size << '\n'
        << build << '\n'
        << peer.rank << '\n'
        << peer.pid << '\n'
        << peer.hostname << '\n'
        << peer.host_id << '\n';
    return out.str();
  }

  static Card read(const std::string& text) {
    std::istringstream in(text);
    return read(in);
  }

  static Card read(std::istream& in) {
    Card card;
    const auto line = [&] {
      std::string value;
      std::getline(in, value);
      return value;
    };
    card.size = std::stoi(line());
    card.build = line();
    card.peer.rank = std::stoi(line());
    card.peer.pid = std::stoll(line());
    card.peer.hostname = line();
    card.peer.host_id = line();
    return card;
  }

  std::string name() const {
    return "rank " + std::to_string(peer.rank) + " (host " + peer.hostname + ", pid " +
           std::to_string(peer.pid) + ")";
  }
};

// Note [Rendezvous]
// A rank claims its number, leaves its card and waits for the verdict: one key, which is written once. Rank 0
// reads each card as it arrives, compares it with its own, and writes the verdict: all cards, or the error. A
// rank that finds another error writes it there too; the first verdict counts. So each rank makes a fixed
// number of requests to the store, and all ranks get the same result.
class Meeting {
 public:
  Meeting(const Identity& me, StorePtr store, Milliseconds timeout)
      : me_(me), store_(std::move(store)), timeout_(timeout), prefix_("fsdp/world/" + me.run_key + "/") {
    mine_ = {.size = me.size,
             .build = me.build,
             .peer = {.rank = me.rank, .hostname = host_name(), .host_id = host_id(), .pid = ::getpid()}};
  }

  std::vector<Peer> run() {
    try {
      return meet_all();
    } catch (const RendezvousError&) {
      let_others_hear();
      throw;
    }
  }

 private:
  std::vector<Peer> meet_all() {
    claim_rank();
    if (me_.rank == 0) collect();
    std::vector<Peer> peers;
    std::istringstream cards(hear_verdict());
    for (int r = 0; r < me_.size; ++r) peers.push_back(Card::read(cards).peer);
    let_others_read();
    return peers;
  }

  // The store ends with rank 0, so rank 0 stays until all have read the verdict.
  void let_others_read() {
    const auto start = Clock::now();
    auto read = store_->add(key(kReadKey), 1);
    for (Milliseconds pause{1}; me_.rank == 0 && read < me_.size && elapsed_since(start) < timeout_;
         pause = std::min(pause * 2, kMaxPause)) {
      std::this_thread::sleep_for(pause);
      read = store_->add(key(kReadKey), 0);
    }
  }

  // The store ends with rank 0, so it stays until the ranks that came have read the error, but not for long.
  void let_others_hear() {
    constexpr Milliseconds kPatience{1000};
    const auto told = store_->add(key(kToldKey), 1);
    if (me_.rank != 0) return;
    const auto came = store_->add(key(kArrivedKey), 0);
    const auto start = Clock::now();
    for (auto heard = told; heard < came && elapsed_since(start) < kPatience;
         heard = store_->add(key(kToldKey), 0))
      std::this_thread::sleep_for(Milliseconds{5});
  }

  std::string key(const char* name) const { return prefix_ + name; }
  std::string rank_key(int rank) const { return prefix_ + "rank/" + std::to_string(rank); }

  std::string arrival_key(int64_t number) const { return prefix_ + "arrival/" + std::to_string(number); }

  // The first verdict counts.
  void give_verdict(char kind, const std::string& text) {
    store_->compareSet(key(kVerdictKey), {}, to_bytes(kind + text));
  }

  // Gives the error to the ranks that still wait, too.
  [[noreturn]] void fail(const std::string& message) {
    give_verdict(kFailedVerdict, message);
    throw RendezvousError(message);
  }

  void claim_rank() {
    if (store_->add(prefix_ + "claims/" + std::to_string(me_.rank), 1) == 1) {
      const auto card = to_bytes(mine_.write());
      store_->set(rank_key(me_.rank), card);
      store_->set(arrival_key(store_->add(key(kArrivedKey), 1)), card);
      return;
    }
    store_->wait({rank_key(me_.rank)}, timeout_);
    const Card first = Card::read(read_key(store_, rank_key(me_.rank)));
    if (first.peer.pid == mine_.peer.pid && first.peer.host_id == mine_.peer.host_id)
      throw RendezvousError(mine_.name() + " called fsdp::init() twice. Call it once and pass the World on.");
    fail("two processes claim to be rank " + std::to_string(me_.rank) + ": " + first.name() +
         " came first, then " + mine_.name() + ". Give every process its own rank (" + me_.source + ").");
  }

  // Rank 0: reads every card once, and compares it at once, since a rank that expects a larger world would
  // wait in vain.
  void collect() {
    const auto start = Clock::now();
    std::map<int, Card> cards;
    std::vector<int64_t> unread;  // arrivals; a rank that counted itself may not have written its card yet
    int64_t arrived = 0;
    for (Milliseconds pause{1};; pause = std::min(pause * 2, kMaxPause)) {
      for (const auto now = store_->add(key(kArrivedKey), 0); arrived < now;) unread.push_back(++arrived);
      std::erase_if(unread, [&](int64_t number) {
        if (!store_->check({arrival_key(number)})) return false;
        const Card theirs = Card::read(read_key(store_, arrival_key(number)));
        compare(theirs);
        cards[theirs.peer.rank] = theirs;
        return true;
      });
      if (static_cast<int>(cards.size()) == me_.size) break;
      if (elapsed_since(start) > timeout_) fail_missing();
      if (store_->check({key(kVerdictKey)})) return;  // another rank found something wrong
      std::this_thread::sleep_for(pause);
    }
    std::string all;
    for (const auto& [rank, card] : cards) all += card.write();
    give_verdict(kMetVerdict, all);
  }

  // Every rank waits here, inside the store, until there is a verdict.
  std::string hear_verdict() {
    try {
      store_->wait({key(kVerdictKey)}, timeout_);
    } catch (const std::exception&) {
      if (!store_->check({key(kVerdictKey)})) fail_missing();
    }
    const std::string verdict = read_key(store_, key(kVerdictKey));
    if (verdict.starts_with(kFailedVerdict)) throw RendezvousError(verdict.substr(1));
    return verdict.substr(1);
  }

  [[noreturn]] void fail_missing() {
    std::string missing;
    int count = 0;
    for (int r = 0; r < me_.size; ++r) {
      if (store_->check({rank_key(r)})) continue;
      if (++count <= 16) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
    if (count > 16) missing += ", ...";
    if (count == 0)
      fail("all " + std::to_string(me_.size) + " ranks came, but rank 0 did not answer within " +
           std::to_string(timeout_.count()) + " ms. It may be stopped, or have come late.");
    fail(std::to_string(me_.size - count) + " of " + std::to_string(me_.size) + " ranks came within " +
         std::to_string(timeout_.count()) + " ms; missing: rank " + missing +
         ". Start as many processes as WORLD_SIZE says, or raise InitOptions::timeout.");
  }

  void compare(const Card& theirs) {
    if (theirs.size != mine_.size)
      fail("ranks disagree about the number of ranks: " + theirs.name() + " says " +
           std::to_string(theirs.size) + ", " + mine_.name() + " says " + std::to_string(mine_.size) +
           ". WORLD_SIZE must be the same for all.");
    if (theirs.build != mine_.build)
      fail("ranks run different builds: " + theirs.name() + " runs " + theirs.build + ", " + mine_.name() +
           " runs " + mine_.build + ". Start the same binary on every host.");
  }

  static constexpr Milliseconds kMaxPause{50};

  const Identity& me_;
  StorePtr store_;
  Milliseconds timeout_;
  std::string prefix_;
  Card mine_;
};

}  // namespace

std::vector<Peer> meet(const Identity& me, const StorePtr& store, Milliseconds timeout) {
  try {
    return Meeting(me, store, timeout).run();
  } catch (const RendezvousError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RendezvousError("rank " + std::to_string(me.rank) +
                          " lost the store while meeting the others; rank 0, which serves it, has ended (" +
                          text.substr(0, text.find('\n')) + ")");
  }
}

}  // namespace fsdp::detail
