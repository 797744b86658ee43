#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <sstream>

#include "trainer/doctor/network.h"

namespace fsdp::doctor {

namespace {

struct Lookup {
  std::vector<std::string> addresses = {};
  std::string error = {};
  double seconds = 0;

  bool all_loopback() const {
    return std::all_of(addresses.begin(), addresses.end(), [](const std::string& address) {
      return address.starts_with("127.") || address == "::1";
    });
  }
  std::string text() const {
    std::string list;
    for (const std::string& address : addresses) list += (list.empty() ? "" : ", ") + address;
    return list;
  }
};

Lookup look_up(const std::string& name) {
  struct Free {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  Lookup found;
  const auto start = std::chrono::steady_clock::now();
  const int code = ::getaddrinfo(name.c_str(), nullptr, &hints, &list);
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (code != 0) {
    found.error = ::gai_strerror(code);
    return found;
  }
  const std::unique_ptr<addrinfo, Free> owner(list);
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) ==
        0)
      found.addresses.emplace_back(text.data());
  }
  return found;
}

void note_slow(Finding& finding, const Lookup& lookup) {
  constexpr double kSlow = 0.5;
  if (lookup.seconds < kSlow) return;
  std::ostringstream seconds;
  seconds.precision(2);
  seconds << lookup.seconds;
  finding.text += ", after " + seconds.str() + " s";
  if (finding.level != Level::ok) return;
  finding.level = Level::warning;
  finding.advice =
      "The DNS does not answer at once, and every rank waits for it when it connects. Put the name into "
      "/etc/hosts, or "
      "set RES_OPTIONS=\"timeout:1 attempts:1\"";
}

Finding own_name(const NetworkOptions& options) {
  Finding found{.subject = "names"};
  const Lookup lookup = look_up(options.machine);
  found.text = options.machine + (lookup.error.empty() ? " is " + lookup.text() : ": " + lookup.error);
  const bool is_loopback = lookup.error.empty() && lookup.all_loopback();
  if (options.several_hosts && (is_loopback || !lookup.error.empty())) {
    found.level = Level::warning;
    found.advice =
        "Ranks of this machine give its name to others. Put a line with its address on the network before "
        "the name into /etc/hosts, or set MASTER_ADDR to an address and GLOO_SOCKET_IFNAME to an interface";
  }
  note_slow(found, lookup);
  return found;
}

Finding master_name(const NetworkOptions& options, const std::string& master) {
  Finding found{.subject = "names"};
  const Lookup lookup = look_up(master);
  found.text =
      "MASTER_ADDR " + master + (lookup.error.empty() ? " is " + lookup.text() : ": " + lookup.error);
  if (!lookup.error.empty()) {
    found.level = Level::problem;
    found.advice =
        "Set MASTER_ADDR to the address of the machine of rank 0, or put the name into /etc/hosts here";
  } else if (options.several_hosts && lookup.all_loopback() && master != options.machine) {
    found.level = Level::problem;
    found.advice =
        "That is this machine, for every machine. Set MASTER_ADDR to an address of the machine of rank 0 "
        "that the others can reach: see `ip -br address` there";
  }
  note_slow(found, lookup);
  return found;
}

}  // namespace

Findings check_names(const NetworkOptions& options) {
  Findings findings = {own_name(options)};
  const auto master = options.variables.find("MASTER_ADDR");
  if (master != options.variables.end()) findings.push_back(master_name(options, master->second));
  return findings;
}

}  // namespace fsdp::doctor
