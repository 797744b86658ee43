#include "comm/order_log.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <map>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "comm/await.h"

namespace fsdp::detail {

namespace {

constexpr Milliseconds kOthersAnswer{2000};

uint64_t mix(uint64_t digest, uint64_t value) {
  digest ^= value + 0x9e3779b97f4a7c15ULL + (digest << 6) + (digest >> 2);
  return digest * 0xff51afd7ed558ccdULL;
}

struct ReadEntry {
  std::string op, activity;
};

// Parses lines of "number operation<tab>activity", by number.
std::map<uint64_t, ReadEntry> parse_entries(const std::string& text) {
  std::map<uint64_t, ReadEntry> entries;
  std::istringstream lines(text);
  uint64_t number = 0;
  for (std::string line; lines >> number && std::getline(lines >> std::ws, line);) {
    const size_t tab = line.find('\t');
    entries[number] = {line.substr(0, tab), tab == std::string::npos ? "" : line.substr(tab + 1)};
  }
  return entries;
}

std::string describe(const ReadEntry& entry) {
  return entry.op + (entry.activity.empty() ? "" : " " + entry.activity);
}

std::string key_of(int rank) { return "order/" + std::to_string(rank); }

}  // namespace

void OrderLog::add(const char* op, std::string_view label, size_t bytes, const std::string& activity) {
  const std::hash<std::string_view> hash;
  digest_ = mix(mix(mix(digest_, hash(op)), hash(label)), bytes);
  ++count_;
  last_.push_back({op, std::string(label), bytes, activity});
  if (last_.size() > kKept) last_.pop_front();
}

void OrderLog::ask(const GroupInfo& info, const at::Tensor& sum) {
  Asked asked{.digest = digest_, .sum = sum, .copied = {}};
  if (!info.device.is_cpu()) {
    asked.sum = at::empty({1}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
    asked.sum.copy_(sum, /*non_blocking=*/true);
    asked.copied.emplace(info.device.type());
    asked.copied->record(c10::impl::VirtualGuardImpl(info.device.type()).getStream(info.device));
  }
  asked_.push_back(std::move(asked));
}

bool OrderLog::answered(const Asked& asked, bool wait) {
  if (!asked.copied || asked.copied->query()) return true;
  if (wait) asked.copied->synchronize();
  return wait;
}

bool OrderLog::look(const GroupInfo& info, bool wait) {
  bool equal = true;
  while (!asked_.empty() && answered(asked_.front(), wait || asked_.size() > kAhead)) {
    const auto sum = static_cast<uint64_t>(*asked_.front().sum.const_data_ptr<int64_t>());
    equal = equal && sum == asked_.front().digest * static_cast<uint64_t>(info.size);
    asked_.pop_front();
  }
  return equal;
}

std::string OrderLog::last_entries() const {
  std::ostringstream text;
  uint64_t number = count_ - last_.size();
  for (const Entry& entry : last_)
    text << number++ << ' ' << entry.op << " '" << entry.label << "' of " << entry.bytes << " bytes\t"
         << entry.activity << '\n';
  return text.str();
}

void OrderLog::share(const GroupInfo& info) const { publish_key(info, key_of(info.rank), last_entries()); }

std::optional<CommError::Details> OrderLog::find_difference(const GroupInfo& info) const {
  const auto ours = parse_entries(last_entries());
  std::optional<CommError::Details> found;
  for (int r = 0; r < info.size; ++r) {
    if (!info.store->check({key_of(r)})) continue;
    const auto bytes = info.store->get(key_of(r));
    for (const auto& [number, theirs] : parse_entries({bytes.begin(), bytes.end()})) {
      const auto own = ours.find(number);
      if (own == ours.end() || own->second.op == theirs.op || (found && found->sequence <= number)) continue;
      found = {.fault = CommFault::mismatch,
               .rank = world_rank(info, info.rank),
               .culprit = world_rank(info, r),
               .op = "check_order",
               .label = "operations so far",
               .sequence = number,
               .elapsed = {},
               .reason = name_of(info, r) + " issued " + describe(theirs) + " where " +
                         name_of(info, info.rank) + " issued " + describe(own->second) +
                         ". Every rank must make the same calls, and use the same parts of the model, in the "
                         "same order",
               .activity = own->second.activity};
    }
  }
  return found;
}

void OrderLog::throw_difference(const GroupInfo& info) const {
  share(info);
  for (const auto deadline = deadline_after(kOthersAnswer); Clock::now() < deadline;) {
    if (const auto found = find_difference(info)) throw CommError(*found);
    std::this_thread::sleep_for(Milliseconds(10));
  }
}

}  // namespace fsdp::detail
