#include "files/run_folder.h"

#include <fsdp/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>
#include <utility>

#include "files/hash128.h"

namespace fsdp::detail {

namespace {

constexpr const char* kLatest = "latest";
constexpr const char* kLock = ".lock";
constexpr const char* kBegun = ".saving-";
constexpr const char* kRetired = ".removing-";

std::string step_name(int64_t step, int generation) {
  std::string digits = std::to_string(step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return "step-" + digits + (generation > 0 ? "." + std::to_string(generation) : "");
}

std::optional<RunFolder::Entry> parse_name(const std::string& name) {
  if (!name.starts_with("step-") || name.size() > 40) return std::nullopt;
  RunFolder::Entry entry{.name = name, .step = 0, .generation = 0};
  const char* end = name.data() + name.size();
  std::from_chars_result parsed = std::from_chars(name.data() + 5, end, entry.step);
  if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '.')
    parsed = std::from_chars(parsed.ptr + 1, end, entry.generation);
  const bool counted = parsed.ec == std::errc() && entry.generation < INT32_MAX;
  const bool ours = counted && step_name(entry.step, entry.generation) == name;
  return ours ? std::optional(entry) : std::nullopt;
}

std::string parent_of(const std::string& path) {
  const size_t name_end = path.find_last_not_of('/');
  const size_t slash = name_end == std::string::npos ? 0 : path.find_last_of('/', name_end);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Makes a folder and those above it, if they do not exist; their names survive a loss of power.
void make_lasting_folders(FileOps& files, const std::string& path) {
  if (files.is_folder(path)) return;
  const std::string parent = parent_of(path);
  if (parent != path) make_lasting_folders(files, parent);
  files.make_folders(path);
  files.sync_folder(parent);
}

// The number that a checkpoint has as value `name`; none if it has none, or is damaged.
std::optional<double> saved_number(const FileOps& files, const std::string& checkpoint,
                                   const std::string& name) {
  try {
    const std::string path = checkpoint + "/" + kManifestName;
    const Json json = parse_json(read_text(files, path, kMostManifestBytes), path);
    const JsonObject value = JsonObject(json, path).object("run").object("values").object(name);
    if (value.has("int")) return static_cast<double>(value.integer("int"));
    const double number = number_of(value.at("float"), path);
    return std::isnan(number) ? std::nullopt : std::optional(number);
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<RunFolder::Entry> RunFolder::entries() const {
  std::vector<Entry> found;
  if (!files_.is_folder(path_)) return found;
  for (const std::string& name : files_.list(path_))
    if (const auto entry = parse_name(name); entry && files_.exists(at(name) + "/" + kManifestName))
      found.push_back(*entry);
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<RunFolder::Entry> RunFolder::latest() const {
  const std::vector<Entry> all = entries();
  if (all.empty()) return std::nullopt;
  const std::string name = named_latest();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Entry& one) { return one.name == name; });
  return found == all.end() ? all.back() : *found;
}

bool RunFolder::is_run() const { return files_.exists(at(kLatest)) || !entries().empty(); }

std::string RunFolder::named_latest() const {
  if (!files_.exists(at(kLatest))) return "";
  std::string name = read_text(files_, at(kLatest), 1000);
  while (name.ends_with('\n')) name.pop_back();
  return name;
}

std::string RunFolder::make() {
  make_lasting_folders(files_, path_);
  return files_.identity(path_);
}

std::shared_ptr<void> RunFolder::lock() {
  make_lasting_folders(files_, path_);
  return files_.lock(at(kLock));
}

std::string RunFolder::lock_identity() const { return files_.identity(at(kLock)); }

std::string RunFolder::begin(int64_t step, const std::string& id) {
  make_lasting_folders(files_, path_);
  files_.sync_folder(parent_of(path_));
  std::vector<std::string> left = files_.list(path_);
  std::erase_if(
      left, [](const std::string& name) { return !name.starts_with(kBegun) && !name.starts_with(kRetired); });
  try {
    remove_hidden(left);
  } catch (const IoError& error) {
    // NFS keeps a file that another program has open. The next save tries again.
    if (error.code() != EBUSY && error.code() != ENOTEMPTY) throw;
  }
  const std::string folder = at(kBegun + std::to_string(step) + "-" + id);
  files_.make_folder(folder);
  return folder;
}

std::string RunFolder::commit(const std::string& begun, int64_t step, const std::string& manifest) {
  write_text(files_, begun + "/" + kManifestName, manifest);
  files_.sync_folder(begun);
  int generation = 0;  // after all existing ones, also those without a manifest
  for (const std::string& other : files_.list(path_))
    if (const auto entry = parse_name(other); entry && entry->step == step)
      generation = std::max(generation, entry->generation + 1);
  const std::string name = step_name(step, generation);
  const std::string fresh = at(std::string(kBegun) + kLatest);
  remove_tree(files_, fresh);
  write_text(files_, fresh, name + "\n");
  files_.rename(begun, at(name));
  try {
    files_.sync_folder(path_);
    files_.rename(fresh, at(kLatest));
  } catch (const IoError&) {
    withdraw(name);
    throw;
  }
  files_.sync_folder(path_);
  return name;
}

void RunFolder::withdraw(const std::string& name) {
  try {
    files_.rename(at(name), at(kRetired + name));
    remove_hidden({kRetired + name});
  } catch (const IoError&) {
    // It stays, and is whole. commit() throws the disk's error.
  }
}

void RunFolder::remove_hidden(const std::vector<std::string>& names) {
  if (names.empty()) return;
  // Makes the renames that hid them durable first: else a damaged one could get its old name back.
  files_.sync_folder(path_);
  for (const std::string& name : names) remove_tree(files_, at(name));
}

std::vector<RunFolder::Entry> RunFolder::entries_up_to(const Entry& newest) const {
  std::vector<Entry> all = entries();
  std::erase_if(all, [&](const Entry& one) { return newest < one; });
  return all;
}

std::string RunFolder::best(const std::string& newest, const std::string& value, bool highest) const {
  const auto last = parse_name(newest);
  if (!last) return "";
  const std::vector<Entry> all = entries_up_to(*last);
  std::string name;
  double best = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i + 1 < all.size() && all[i + 1].step == all[i].step) continue;  // it was saved again
    const auto number = saved_number(files_, at(all[i].name), value);
    if (!number || (!name.empty() && (highest ? *number < best : *number > best))) continue;
    name = all[i].name;
    best = *number;
  }
  return name;
}

void RunFolder::retire(const std::string& newest, int64_t keep_last, int64_t keep_every,
                       const std::string& best) {
  const auto last = parse_name(newest);
  if (keep_last <= 0 || !last) return;
  const auto latest_now = latest();
  std::vector<Entry> older = entries_up_to(*last);
  std::erase(older, *last);
  std::vector<std::string> hidden;
  int64_t recent = 1;
  int64_t above = last->step;
  for (auto one = older.rbegin(); one != older.rend(); ++one) {
    // If a step was saved again, only its last generation counts.
    const bool again = std::exchange(above, one->step) == one->step;
    const bool marked = (keep_every > 0 && one->step % keep_every == 0) || one->name == best;
    const bool kept = !again && (recent++ < keep_last || marked);
    if (kept || (latest_now && *latest_now == *one)) continue;
    hidden.push_back(kRetired + one->name);
    files_.rename(at(one->name), at(hidden.back()));
  }
  remove_hidden(hidden);
}

std::string new_save_id() {
  std::random_device device;
  const uint64_t word = uint64_t{device()} << 32 | device();
  return to_hex({.high = 0, .low = word}).substr(kHashDigits / 2);
}

OpenCheckpoint find_checkpoint(FileOps& files, const std::string& path) {
  if (!files.exists(path)) throw CheckpointError("no checkpoint: " + path + " does not exist");
  if (!files.is_folder(path))
    throw CheckpointError(path + " is a file; a checkpoint is a folder with a " + kManifestName);
  std::string folder = path;
  if (!files.exists(path + "/" + kManifestName)) {
    const RunFolder run(files, path);
    const auto latest = run.latest();
    if (!latest)
      throw CheckpointError("no checkpoint in " + path + ": it has no " + kManifestName +
                            " and no folder step-<number> with one");
    const std::string named = run.named_latest();
    if (named != latest->name && parse_name(named) && files.exists(path + "/" + named))
      throw CheckpointError(path + "/" + named + ", the latest checkpoint, has lost its " + kManifestName +
                            ". Copy it again, or load another by its name, such as " + path + "/" +
                            latest->name);
    folder = path + "/" + latest->name;
  }
  return {.folder = folder,
          .manifest_text = read_text(files, folder + "/" + kManifestName, kMostManifestBytes)};
}

}  // namespace fsdp::detail
