#include "trainer/control/control_server.h"
#include "app/launch/quiet_thread.h"

#include <arpa/inet.h>
#include <fsdp/error.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>
#include <vector>

namespace fsdp::control {

namespace {

constexpr size_t kLongestRequest = 4096;
constexpr size_t kMostClients = 64;
constexpr auto kTimeToAsk = std::chrono::seconds(10);

// On loopback, at a free port. Sets `port`.
launch::Fd listen_on_loopback(int& port) {
  launch::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  constexpr int kBacklog = 64;
  if (!socket.valid() || ::bind(socket.get(), generic, size) != 0 || ::listen(socket.get(), kBacklog) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0)
    throw IoError("listen at", "127.0.0.1", errno, "for `fsdp ctl`");
  port = ntohs(address.sin_port);
  return socket;
}

// Takes equally long wherever they differ.
bool is_same(const std::string& secret, const std::string& given) {
  unsigned char difference = secret.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < secret.size() && i < given.size(); ++i)
    difference = static_cast<unsigned char>(difference | (secret[i] ^ given[i]));
  return difference == 0;
}

std::string text_in(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

nlohmann::json refusal(const std::string& error) { return {{"ok", false}, {"error", error}}; }

// A client that does not read is not waited for.
bool send_line(const launch::Fd& socket, const nlohmann::json& message) {
  const std::string line = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return ::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(line.size());
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The checkpoint that the file `latest` names; empty: none.
std::string latest_checkpoint(const watch::RunFolder& folder) {
  std::ifstream latest(folder.path + "/latest");
  std::string name;
  std::getline(latest, name);
  return name.empty() ? "" : folder.path + "/" + name;
}

}  // namespace

ControlServer::ControlServer(ControlFacts facts)
    : facts_(std::move(facts)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  step_.step = facts_.step;
  address_ = {.host = "127.0.0.1",
              .token = random_token(),
              .pid = ::getpid(),
              .run = facts_.folder.path,
              .machine = host_name()};
  listener_ = listen_on_loopback(address_.port);
  if (!wake_.valid()) throw IoError("make", "an event", errno);
  write_control_file(facts_.folder.control(), address_);
  thread_ = launch::quiet_thread([this] {
    try {
      serve();
    } catch (const std::exception&) {
      clients_.clear();  // there is no memory, for example: training goes on without answers
      listener_.close();
    }
  });
}

ControlServer::~ControlServer() {
  {
    const std::lock_guard lock(mutex_);
    leave_ = true;
  }
  wake();
  thread_.join();
  ::unlink(facts_.folder.control().c_str());
}

void ControlServer::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

void ControlServer::enter(const char* phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  phase_since_ = Clock::now();
}

void ControlServer::done(const watch::StepRecord& step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

void ControlServer::done(const watch::EvalRecord& eval) {
  const std::lock_guard lock(mutex_);
  eval_ = eval;
}

ControlVotes ControlServer::take(int64_t step) {
  const std::lock_guard lock(mutex_);
  const bool save = saves_asked_ > saves_taken_;
  if (save) {
    saves_taken_ = saves_asked_;
    taken_step_ = step;
  }
  return {.save = save, .stop = stop_asked_};
}

void ControlServer::saved(int64_t step, const std::string& checkpoint) {
  {
    const std::lock_guard lock(mutex_);
    saved_step_ = step;
    checkpoint_ = checkpoint;
    if (step >= taken_step_) saves_done_ = saves_taken_;
  }
  wake();
}

void ControlServer::ended() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake();
}

void ControlServer::serve() {
  for (;;) {
    std::vector<pollfd> wait{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                             {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Client& client : clients_)
      wait.push_back({.fd = client.socket.get(), .events = POLLIN, .revents = 0});
    ::poll(wait.data(), wait.size(), clients_.empty() ? -1 : 1000);
    uint64_t woken = 0;
    [[maybe_unused]] const auto read = ::read(wake_.get(), &woken, sizeof(woken));
    if (wait[1].revents != 0) accept_new();
    for (Client& client : clients_) listen_to(client);
    bool leaving = false;
    {
      const std::lock_guard lock(mutex_);
      leaving = leave_;
    }
    answer_waiting(leaving);
    clients_.remove_if([](const Client& client) { return !client.socket.valid(); });
    if (leaving) return;
  }
}

void ControlServer::accept_new() {
  for (;;) {
    launch::Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // Without a descriptor the connection stays in the queue, and poll() would not sleep.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return;
    }
    if (clients_.size() >= kMostClients) {
      const auto oldest = std::find_if(clients_.begin(), clients_.end(),
                                       [](const Client& client) { return client.waits == Waits::no; });
      if (oldest == clients_.end()) continue;
      clients_.erase(oldest);
    }
    clients_.push_back({.socket = std::move(socket), .since = Clock::now()});
  }
}

void ControlServer::listen_to(Client& client) {
  std::array<char, kLongestRequest> part{};
  const auto n = ::recv(client.socket.get(), part.data(), part.size(), MSG_DONTWAIT);
  if (n > 0) client.unread.append(part.data(), static_cast<size_t>(n));
  const bool is_open = n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
  for (size_t end = 0; client.socket.valid() && (end = client.unread.find('\n')) != std::string::npos;) {
    const std::string line = client.unread.substr(0, end);
    client.unread.erase(0, end + 1);
    answer_line(client, line);
  }
  const bool is_late = client.waits == Waits::no && Clock::now() > client.since + kTimeToAsk;
  if (!is_open || is_late || client.unread.size() >= kLongestRequest) client.socket.close();
}

void ControlServer::answer_line(Client& client, const std::string& line) {
  const Json request = Json::parse(line, nullptr, false);
  client.since = Clock::now();
  if (!request.is_object() || !is_same(address_.token, text_in(request, "token"))) {
    send_line(client.socket,
              refusal(request.is_object() ? "the token is not that of " + facts_.folder.control()
                                          : "a request is a line with a JSON object"));
    client.socket.close();
    return;
  }
  const std::string what = text_in(request, "do");
  if (what == "save" || what == "stop") {
    const std::lock_guard lock(mutex_);
    client.waits = what == "save" ? Waits::save : Waits::stop;
    if (what == "save") client.request = ++saves_asked_;
    if (what == "stop") stop_asked_ = true;
    return;
  }
  const Json answer = what == "status" ? status()
                      : what == "metrics"
                          ? metrics()
                          : refusal("do: found '" + what + "', expected status, metrics, save or stop");
  if (!send_line(client.socket, answer)) client.socket.close();
}

nlohmann::json ControlServer::status() {
  Json json = {{"ok", true},
               {"run", facts_.folder.path},
               {"last_step", facts_.last_step},
               {"ranks", facts_.ranks},
               {"checkpoint", latest_checkpoint(facts_.folder)},
               {"pid", address_.pid},
               {"machine", address_.machine},
               {"seconds", seconds_since(began_)},
               {"waiting", facts_.waiting ? facts_.waiting() : ""}};
  const std::lock_guard lock(mutex_);
  json.update({{"step", step_.step}, {"phase", phase_}, {"phase_seconds", seconds_since(phase_since_)}});
  return json;
}

nlohmann::json ControlServer::metrics() {
  watch::StepRecord step;
  watch::EvalRecord eval;
  {
    const std::lock_guard lock(mutex_);
    step = step_;
    eval = eval_;
  }
  Json json = {{"ok", true}, {"metrics", Json()}, {"eval", Json()}};
  if (step.time > 0) json["metrics"] = Json::parse(watch::to_json(step));
  if (eval.time > 0) json["eval"] = Json::parse(watch::to_json(eval));
  return json;
}

// Tells clients whose request is done, and all when the server leaves.
void ControlServer::answer_waiting(bool leaving) {
  const std::lock_guard lock(mutex_);
  for (Client& client : clients_) {
    if (client.waits == Waits::no || !client.socket.valid()) continue;
    const bool is_done = ended_ || (client.waits == Waits::save && saves_done_ >= client.request);
    if (!is_done && !leaving) continue;
    if (is_done)
      send_line(client.socket, {{"ok", true}, {"step", saved_step_}, {"checkpoint", checkpoint_}});
    else
      send_line(client.socket, refusal("the run failed before it had saved"));
    client.waits = Waits::no;
  }
}

}  // namespace fsdp::control
