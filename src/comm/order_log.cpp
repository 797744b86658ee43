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

// Lines of "number operation" by number.
std::map<uint64_t, std::string> parse_entries(const std::string& text) {
  std::map<uint64_t, std::string> entries;
  std::istringstream lines(text);
  uint64_t number = 0;
  for (std::string words; lines >> number && std::getline(lines >> std::ws, words);) entries[number] = words;
  return entries;
}

std::optional<std::string> read_soon(const GroupInfo& info, const std::string& key) {
  const auto start = Clock::now();
  while (!info.store->check({key})) {
    if (elapsed_since(start) > kOthersAnswer) return std::nullopt;
    std::this_thread::sleep_for(Milliseconds(5));
  }
  const auto bytes = info.store->get(key);
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace

void OrderLog::add(const char* op, std::string_view label, size_t bytes) {
  const std::hash<std::string_view> hash;
  digest_ = mix(mix(mix(digest_, hash(op)), hash(label)), bytes);
  ++count_;
  last_.push_back({op, std::string(label), bytes});
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

void OrderLog::look(const GroupInfo& info, bool wait) {
  while (!asked_.empty() && answered(asked_.front(), wait)) {
    const Asked asked = std::move(asked_.front());
    asked_.pop_front();
    const auto sum = static_cast<uint64_t>(*asked.sum.const_data_ptr<int64_t>());
    if (sum != asked.digest * static_cast<uint64_t>(info.size)) throw_difference(info);
  }
}

std::string OrderLog::last_entries() const {
  std::ostringstream text;
  uint64_t number = count_ - last_.size();
  for (const Entry& entry : last_)
    text << number++ << ' ' << entry.op << " '" << entry.label << "' of " << entry.bytes << " bytes\n";
  return text.str();
}

void OrderLog::throw_difference(const GroupInfo& info) const {
  const auto key = [](int rank) { return "order/" + std::to_string(rank); };
  const std::string mine = last_entries();
  publish_key(info, key(info.rank), mine);
  const auto ours = parse_entries(mine);
  CommError::Details details{.fault = CommFault::mismatch,
                             .rank = world_rank(info, info.rank),
                             .culprit = -1,
                             .op = "check_order",
                             .label = "operations so far",
                             .sequence = count_,
                             .elapsed = {},
                             .reason = "ranks were asked for different operations"};
  uint64_t first = UINT64_MAX;
  for (int r = 0; r < info.size; ++r) {
    const auto text = read_soon(info, key(r));
    if (!text) continue;
    for (const auto& [number, words] : parse_entries(*text)) {
      const auto own = ours.find(number);
      if (number >= first || own == ours.end() || own->second == words) continue;
      first = number;
      details.culprit = world_rank(info, r);
      details.sequence = number;
      details.reason = name_of(info, r) + " issued " + words + " where " + name_of(info, info.rank) +
                       " issued " + own->second;
    }
  }
  details.reason += ". Every rank must use the same parts of the model in the same order";
  throw CommError(std::move(details));
}

}  // namespace fsdp::detail
