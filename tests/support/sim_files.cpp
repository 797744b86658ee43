#include "support/sim_files.h"

#include <fsdp/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <stdexcept>

namespace fsdp::testing {

namespace {

constexpr size_t kSector = 512;

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string part = path.substr(at, end - at);
    if (part == "..") throw std::logic_error("a path with '..': " + path);
    if (!part.empty() && part != ".") parts.push_back(part);
    at = end + 1;
  }
  return parts;
}

// What of `now` lasted, where `synced` was sure to.
std::string torn(const std::string& synced, const std::string& now, std::mt19937& random) {
  const unsigned kind = random() % 4;
  if (kind == 0) return synced;
  if (kind == 1) return now;
  if (kind == 2) {
    const size_t same = random() % (now.size() + 1);
    return same >= synced.size() ? now.substr(0, same) : now.substr(0, same) + synced.substr(same);
  }
  std::string data = synced;
  data.resize(random() % 2 == 0 ? now.size() : random() % (now.size() + 1));
  for (size_t at = 0; at < data.size(); at += kSector)
    if (random() % 2 == 0)
      std::memcpy(data.data() + at, now.data() + at, std::min(kSector, data.size() - at));
  return data;
}

}  // namespace

class SimFile final : public detail::OpenFile {
 public:
  SimFile(SimFiles::Node& node, std::string path, bool writable)
      : node_(node), path_(std::move(path)), writable_(writable) {}

  void write(std::span<const std::byte> bytes, int64_t offset) override {
    if (!writable_) throw IoError("write", path_, EBADF);
    const auto at = static_cast<size_t>(offset);
    node_.data.resize(std::max(node_.data.size(), at + bytes.size()));
    if (!bytes.empty()) std::memcpy(node_.data.data() + at, bytes.data(), bytes.size());
  }

  void read(std::span<std::byte> bytes, int64_t offset) const override {
    const auto at = static_cast<size_t>(offset);
    if (at > node_.data.size() || bytes.size() > node_.data.size() - at)
      throw IoError("read", path_, 0, "it ends too early");
    if (!bytes.empty()) std::memcpy(bytes.data(), node_.data.data() + at, bytes.size());
  }

  int64_t size() const override { return static_cast<int64_t>(node_.data.size()); }
  void sync() override { node_.synced_data = node_.data; }
  void close() override {}

 private:
  SimFiles::Node& node_;
  std::string path_;
  bool writable_;
};

SimFiles::SimFiles() { add(true); }

int SimFiles::add(bool folder) {
  nodes_[next_].folder = folder;
  return next_++;
}

SimFiles::Place SimFiles::find(const std::string& path, const char* doing) const {
  Place place{.folder = -1, .name = "", .node = 0};
  for (const std::string& part : parts_of(path)) {
    if (place.node < 0) throw IoError(doing, path, ENOENT);
    const Node& folder = nodes_.at(place.node);
    if (!folder.folder) throw IoError(doing, path, ENOTDIR);
    const auto found = folder.names.find(part);
    place = {.folder = place.node, .name = part, .node = found == folder.names.end() ? -1 : found->second};
  }
  return place;
}

SimFiles::Place SimFiles::find_existing(const std::string& path, const char* doing) const {
  Place place = find(path, doing);
  if (place.node < 0) throw IoError(doing, path, ENOENT);
  return place;
}

void SimFiles::apply(Names& names, const Change& change) {
  if (!change.gone.empty()) names.erase(change.gone);
  if (!change.name.empty()) names[change.name] = change.node;
}

void SimFiles::change(int folder, Change change) {
  apply(nodes_[folder].names, change);
  nodes_[folder].changes.push_back(std::move(change));
}

detail::FilePtr SimFiles::create(const std::string& path) {
  const Place place = find(path, "create");
  if (place.node >= 0) throw IoError("create", path, EEXIST);
  const int node = add(false);
  change(place.folder, {.gone = "", .name = place.name, .node = node});
  return std::make_unique<SimFile>(nodes_[node], path, true);
}

detail::FilePtr SimFiles::open(const std::string& path) const {
  const Place place = find_existing(path, "open");
  if (nodes_.at(place.node).folder) throw IoError("open", path, 0, "it is not a regular file");
  return std::make_unique<SimFile>(const_cast<Node&>(nodes_.at(place.node)), path, false);
}

void SimFiles::make_folder(const std::string& path) {
  const Place place = find(path, "make folder");
  if (place.node >= 0) throw IoError("make folder", path, EEXIST);
  change(place.folder, {.gone = "", .name = place.name, .node = add(true)});
}

void SimFiles::make_folders(const std::string& path) {
  std::string above;
  for (const std::string& part : parts_of(path)) {
    above += "/" + part;
    if (!exists(above)) make_folder(above);
  }
}

void SimFiles::rename(const std::string& from, const std::string& to) {
  const Place old = find_existing(from, "rename");
  const Place fresh = find(to, "rename");
  if (fresh.node >= 0 && !nodes_[fresh.node].names.empty()) throw IoError("rename to " + to, from, ENOTEMPTY);
  if (fresh.node >= 0 && nodes_[fresh.node].folder != nodes_[old.node].folder)
    throw IoError("rename to " + to, from, nodes_[fresh.node].folder ? EISDIR : ENOTDIR);
  if (old.folder != fresh.folder) throw std::logic_error("a rename into another folder: " + to);
  change(old.folder, {.gone = old.name, .name = fresh.name, .node = old.node});
}

void SimFiles::sync_folder(const std::string& path) {
  Node& folder = nodes_[find_existing(path, "sync folder").node];
  if (!folder.folder) throw IoError("sync folder", path, ENOTDIR);
  folder.synced_names = folder.names;
  folder.changes.clear();
}

void SimFiles::remove_file(const std::string& path) {
  const Place place = find(path, "remove");
  if (place.node < 0) return;
  if (nodes_[place.node].folder) throw IoError("remove", path, EISDIR);
  change(place.folder, {.gone = place.name, .name = "", .node = -1});
}

void SimFiles::remove_folder(const std::string& path) {
  const Place place = find(path, "remove folder");
  if (place.node < 0) return;
  if (!nodes_[place.node].folder) throw IoError("remove folder", path, ENOTDIR);
  if (!nodes_[place.node].names.empty()) throw IoError("remove folder", path, ENOTEMPTY);
  change(place.folder, {.gone = place.name, .name = "", .node = -1});
}

std::vector<std::string> SimFiles::list(const std::string& path) const {
  const Node& folder = nodes_.at(find_existing(path, "list").node);
  if (!folder.folder) throw IoError("list", path, ENOTDIR);
  std::vector<std::string> names;
  for (const auto& [name, node] : folder.names) names.push_back(name);
  return names;
}

bool SimFiles::exists(const std::string& path) const {
  try {
    return find(path, "look at").node >= 0;
  } catch (const IoError&) {
    return false;
  }
}

bool SimFiles::is_folder(const std::string& path) const {
  return exists(path) && nodes_.at(find(path, "look at").node).folder;
}

std::shared_ptr<void> SimFiles::lock(const std::string& path) {
  if (!exists(path)) create(path);
  if (!locks_[path].expired()) return nullptr;
  const auto held = std::make_shared<int>();
  locks_[path] = held;
  return held;
}

void SimFiles::lose_power(unsigned seed) {
  std::mt19937 random(seed);
  for (auto& [id, node] : nodes_) {
    if (node.data != node.synced_data) node.data = torn(node.synced_data, node.data, random);
    node.synced_data = node.data;
    // Now and then all or none; mostly some.
    const unsigned kind = random() % 4;
    node.names = node.synced_names;
    for (const Change& change : node.changes)
      if (kind == 0 || (kind != 1 && random() % 2 == 0)) apply(node.names, change);
    node.synced_names = node.names;
    node.changes.clear();
  }
  locks_.clear();
  drop_unreachable();
}

void SimFiles::drop_unreachable() {
  std::set<int> reached;
  const std::function<void(int)> reach = [&](int node) {
    if (!reached.insert(node).second) return;
    for (const auto& [name, inner] : nodes_[node].names) reach(inner);
  };
  reach(0);
  std::erase_if(nodes_, [&](const auto& one) { return !reached.contains(one.first); });
}

std::map<std::string, std::string> SimFiles::all() const {
  std::map<std::string, std::string> found;
  const std::function<void(int, const std::string&)> walk = [&](int id, const std::string& path) {
    for (const auto& [name, inner] : nodes_.at(id).names) {
      const std::string below = path + "/" + name;
      if (!nodes_.at(inner).folder) {
        found[below] = nodes_.at(inner).data;
        continue;
      }
      found[below + "/"] = "";
      walk(inner, below);
    }
  };
  walk(0, "");
  return found;
}

void SimFiles::put(const std::string& path, std::string data) {
  const Place place = find(path, "put");
  const int node = place.node >= 0 ? place.node : add(false);
  nodes_[node].data = nodes_[node].synced_data = std::move(data);
  nodes_[place.folder].names[place.name] = nodes_[place.folder].synced_names[place.name] = node;
}

}  // namespace fsdp::testing
