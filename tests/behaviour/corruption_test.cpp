// Promise: a checkpoint that was changed is refused with CheckpointError or IoError before a changed byte is
// passed on, or loads bit-identical where the change is without meaning. Nothing else happens: no crash, no
// other exception, no large memory, no long wait.
#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <new>
#include <random>

#include "files/block_file.h"
#include "files/run_folder.h"
#include "files/safetensors.h"
#include "support/repeats.h"
#include "support/sim_files.h"
#include "support/small_checkpoint.h"

namespace {

// Bytes that are allocated, and the most there were. Read by one thread.
std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> most_bytes{0};

void* counted(size_t bytes) noexcept {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) return nullptr;
  const int64_t now = live_bytes += static_cast<int64_t>(::malloc_usable_size(memory));
  if (now > most_bytes) most_bytes = now;
  return memory;
}

void uncounted(void* memory) noexcept {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) {
  if (void* memory = counted(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return counted(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return counted(bytes); }
void operator delete(void* memory) noexcept { uncounted(memory); }
void operator delete[](void* memory) noexcept { uncounted(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { uncounted(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { uncounted(memory); }

namespace fsdp::testing {
namespace {

using detail::BlockReader;
using detail::hash128;
using detail::Json;
using detail::Manifest;

using Files = std::map<std::string, std::string>;
using Random = std::mt19937;

const std::string kFolder = "/run/step-00000002/";
const std::string kManifest = kFolder + "manifest.json";
const std::vector<std::string> kShards{kFolder + "rank-0.safetensors", kFolder + "rank-1.safetensors"};
const std::string kOtherFolder = "/run/step-00000001/";

size_t below(size_t n, Random& random) { return n == 0 ? 0 : random() % n; }

template <class Items>
const auto& pick(const Items& items, Random& random) {
  return items[below(items.size(), random)];
}

// A run with two checkpoints.
const SimFiles& sound_disk() {
  static const SimFiles kDisk = [] {
    SimFiles disk;
    save_small(disk, "/run", {.step = 1, .seed = 1});
    save_small(disk, "/run", {.step = 2, .seed = 2});
    return disk;
  }();
  return kDisk;
}

const Files& sound_files() {
  static const Files kFiles = [] {
    Files files = sound_disk().all();
    std::erase_if(files,
                  [](const auto& one) { return one.first.ends_with('/') || one.first.ends_with(".lock"); });
    return files;
  }();
  return kFiles;
}

std::string& any_file(Files& files, Random& random) {
  const std::string path = random() % 8 == 0   ? "/run/latest"
                           : random() % 3 == 0 ? kManifest
                                               : pick(kShards, random);
  return files.at(path);
}

std::string some_bytes(Random& random) {
  std::string bytes(1 + below(random() % 4 == 0 ? 5000 : 16, random), '\0');
  if (random() % 3 != 0)
    for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// ---- damage that hashes find ----

void flip_bits(Files& files, Random& random) {
  std::string& data = any_file(files, random);
  for (size_t n = 1 + below(8, random); n > 0; --n) {
    const size_t at = below(data.size(), random);
    data[at] = static_cast<char>(data[at] ^ (1 << random() % 8));
  }
}

void truncate(Files& files, Random& random) {
  std::string& data = any_file(files, random);
  data.resize(below(data.size(), random));
}

void extend(Files& files, Random& random) {
  std::string& data = any_file(files, random);
  data += random() % 4 == 0 ? data : some_bytes(random);
}

void insert_or_erase(Files& files, Random& random) {
  std::string& data = any_file(files, random);
  const size_t at = below(data.size(), random);
  if (random() % 2 == 0)
    data.insert(at, some_bytes(random));
  else
    data.erase(at, 1 + below(100, random));
}

// A piece of one file over a piece of another.
void splice(Files& files, Random& random) {
  auto from = files.begin();
  std::advance(from, below(files.size(), random));
  const size_t begin = below(from->second.size(), random);
  const std::string piece = from->second.substr(begin, 1 + below(2000, random));
  std::string& data = any_file(files, random);
  data.replace(below(data.size(), random), random() % 2 == 0 ? piece.size() : 0, piece);
}

void swap_shards(Files& files, Random& /*random*/) { std::swap(files.at(kShards[0]), files.at(kShards[1])); }

void take_of_other_step(Files& files, Random& random) {
  const std::string name =
      pick(std::vector<std::string>{"rank-0.safetensors", "rank-1.safetensors", "manifest.json"}, random);
  files.at(kFolder + name) = files.at(kOtherFolder + name);
}

void remove_or_empty(Files& files, Random& random) {
  const std::string path = random() % 3 == 0 ? kManifest : pick(kShards, random);
  if (random() % 2 == 0)
    files.erase(path);
  else
    files.at(path).clear();
}

// ---- manifests that someone made, with the hash they must have ----

void repair_hash(std::string& text) {
  const size_t tail = detail::kHashDigits + 4;
  if (text.size() < tail) return;
  const std::string hashed = text.substr(0, text.size() - tail);
  text = hashed + to_hex(hash128(hashed)) + "\"\n}\n";
}

std::string manifest_text(Json json) {
  json.erase("check");
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.back() = ',';
  text += "\"check\": \"";
  return text + to_hex(hash128(text)) + "\"\n}\n";
}

const Json& sound_manifest() {
  static const Json kJson = Json::parse(sound_files().at(kManifest));
  return kJson;
}

const std::vector<std::string>& places_in_manifest() {
  static const std::vector<std::string> kPlaces = [] {
    std::vector<std::string> places;
    const Json flat = sound_manifest().flatten();
    for (const auto& [place, value] : flat.items())
      if (place != "/check") places.push_back(place);
    return places;
  }();
  return kPlaces;
}

Json hostile_value(Random& random) {
  static const std::vector<Json> kValues{nullptr,
                                         true,
                                         false,
                                         "",
                                         "x",
                                         Json::array(),
                                         Json::object(),
                                         0,
                                         1,
                                         2,
                                         3,
                                         8,
                                         15,
                                         16,
                                         17,
                                         31,
                                         62,
                                         124,
                                         527,
                                         -1,
                                         INT32_MAX,
                                         int64_t{INT32_MAX} + 1,
                                         int64_t{1} << 32,
                                         int64_t{1} << 40,
                                         int64_t{1} << 53,
                                         int64_t{1} << 60,
                                         (int64_t{1} << 60) + 1,
                                         INT64_MAX,
                                         INT64_MAX - 1,
                                         INT64_MAX / 2,
                                         INT64_MIN,
                                         uint64_t{1} << 63,
                                         UINT64_MAX,
                                         0.5,
                                         1e300,
                                         -1e-300,
                                         "F8_E4M3",
                                         "C64",
                                         "F64",
                                         std::string(5000, '0'),
                                         std::string(64, 'f'),
                                         "\xff",
                                         std::string(1, '\0')};
  return pick(kValues, random);
}

void hostile_numbers(Files& files, Random& random) {
  Json json = sound_manifest();
  for (size_t n = 1 + below(3, random); n > 0; --n) {
    const Json::json_pointer place(pick(places_in_manifest(), random));
    const Json& old = json[place];
    if (old.is_number_integer() && random() % 2 == 0)
      json[place] = old.get<int64_t>() + static_cast<int64_t>(random() % 9) - 4;
    else
      json[place] = hostile_value(random);
    if (json.flatten().size() != sound_manifest().flatten().size()) break;
  }
  files.at(kManifest) = manifest_text(json);
}

// Boxes that are moved, doubled, lost, cut or grown.
void hostile_boxes(Files& files, Random& random) {
  Json json = sound_manifest();
  auto tensor = json["tensors"].begin();
  std::advance(tensor, below(json["tensors"].size(), random));
  Json& boxes = (*tensor)["boxes"];
  Json& box = boxes[below(boxes.size(), random)];
  Json& number = box[below(box.size(), random)];
  switch (random() % 5) {
    case 0:
      boxes.push_back(Json(box));
      break;
    case 1:
      boxes.erase(below(boxes.size(), random));
      break;
    case 2:
      box.erase(below(box.size(), random));
      break;
    case 3:
      number = INT64_MAX - static_cast<int64_t>(random() % 3);
      break;
    default:
      number = number.get<int64_t>() + (random() % 2 == 0 ? 1 : -1);
  }
  files.at(kManifest) = manifest_text(json);
}

void hostile_names(Files& files, Random& random) {
  static const std::vector<std::string> kNames{"../step-00000001/rank-0.safetensors",
                                               "..",
                                               ".",
                                               "",
                                               "/run/step-00000002/rank-0.safetensors",
                                               "a/b",
                                               "./rank-0.safetensors",
                                               ".hidden",
                                               "rank-0.safetensors/",
                                               "rank-0.safetensors/..",
                                               "rank 0",
                                               "a\\b",
                                               std::string("rank-0.safetensors\0", 19),
                                               "rank-0.safetensors\n",
                                               std::string(100000, 'a'),
                                               "~",
                                               "$HOME",
                                               "\xff"};
  Json json = sound_manifest();
  json["files"][random() % 2]["name"] = pick(kNames, random);
  files.at(kManifest) = manifest_text(json);
}

void nest_deeply(Files& files, Random& random) {
  std::string& text = files.at(kManifest);
  const size_t depth = 17 + below(random() % 10 == 0 ? 100000 : 50, random);
  const bool lists = random() % 2 == 0;
  std::string nested;
  for (size_t i = 0; i < depth; ++i) nested += lists ? "[" : R"({"a":)";
  nested += "1";
  if (random() % 2 == 0)
    for (size_t i = 0; i < depth; ++i) nested += lists ? "]" : "}";
  text.insert(text.find("\"run\": {") + 8, "\"deep\":" + nested + ",");
  repair_hash(text);
}

void double_keys(Files& files, Random& random) {
  std::string& text = files.at(kManifest);
  std::vector<size_t> objects;  // that have a key
  for (size_t at = text.find("{\""); at != std::string::npos; at = text.find("{\"", at + 1))
    objects.push_back(at);
  const size_t at = pick(objects, random) + 1;
  const std::string key = text.substr(at, text.find(':', at) - at);
  text.insert(at,
              key + ":" + hostile_value(random).dump(-1, ' ', false, Json::error_handler_t::replace) + ",");
  repair_hash(text);
}

void edit_text(Files& files, Random& random) {
  std::string& text = files.at(kManifest);
  for (size_t n = 1 + below(4, random); n > 0; --n) {
    const size_t at = below(text.size() - 60, random);
    switch (random() % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + below(20, random));
        break;
      case 2:
        text.insert(at, text.substr(below(text.size(), random), below(40, random)));
        break;
      default:
        text[at] = pick(std::string("{}[],:\"0123456789-e.tfn \\"), random);
    }
  }
  repair_hash(text);
}

// A header that someone made, of a shard the manifest vouches for.
void hostile_header(Files& files, Random& random) {
  const size_t which = random() % 2;
  std::string& shard = files.at(kShards[which]);
  Json json = sound_manifest();
  const auto header_bytes = json["files"][which]["header_bytes"].get<size_t>();
  std::string header = shard.substr(0, header_bytes);
  for (size_t n = 1 + below(4, random); n > 0; --n) {
    const size_t at = below(random() % 4 == 0 ? 8 : header.size(), random);
    if (random() % 2 == 0)
      header[at] = pick(std::string("{}[],:\"0123456789-e.tfn \\\xff", 27), random);
    else
      header.insert(8 + below(header.size() - 8, random),
                    header.substr(8 + below(header.size() - 8, random), 1 + below(60, random)));
  }
  shard = header + shard.substr(header_bytes);
  json["files"][which]["header_bytes"] = header.size();
  json["files"][which]["header"] = to_hex(hash128(header));
  files.at(kManifest) = manifest_text(json);
}

// What may come of a kind of damage.
enum class May {
  be_refused,    // only
  mean_nothing,  // or load as it was
  be_sound,      // or be another checkpoint: nobody can tell
};

struct Kind {
  const char* name;
  May may;
  void (*damage)(Files&, Random&);
};

const std::vector<Kind> kKinds{{"bits flipped", May::mean_nothing, &flip_bits},
                               {"cut off", May::mean_nothing, &truncate},
                               {"extended", May::mean_nothing, &extend},
                               {"inserted or erased", May::mean_nothing, &insert_or_erase},
                               {"spliced", May::mean_nothing, &splice},
                               {"shards swapped", May::be_refused, &swap_shards},
                               {"of another step", May::be_refused, &take_of_other_step},
                               {"removed or empty", May::mean_nothing, &remove_or_empty},
                               {"hostile numbers", May::be_sound, &hostile_numbers},
                               {"hostile boxes", May::be_sound, &hostile_boxes},
                               {"hostile names", May::be_refused, &hostile_names},
                               {"nested deeply", May::be_refused, &nest_deeply},
                               {"keys doubled", May::be_refused, &double_keys},
                               {"edited text", May::be_sound, &edit_text},
                               {"hostile headers", May::mean_nothing, &hostile_header}};

SimFiles disk_with(const Files& files) {
  SimFiles disk = sound_disk();
  for (const auto& [path, data] : sound_files()) {
    const auto now = files.find(path);
    if (now == files.end())
      disk.remove_file(path);
    else if (now->second != data)
      disk.put(path, now->second);
  }
  return disk;
}

// Reads all that a reader of this checkpoint may read. Bytes that are passed on are those that were saved.
SmallContents load_all(SimFiles& disk, int64_t& headers_refused) {
  const detail::OpenCheckpoint found = detail::find_checkpoint(disk, "/run");
  const Manifest manifest = Manifest::parse(found.manifest_text, "manifest");
  for (const detail::SavedFile& file : manifest.files) {
    BlockReader reader(disk, found.folder, file);
    const std::string& saved = sound_files().at(found.folder + "/" + file.name);
    int64_t at = static_cast<int64_t>(saved.size()) - file.data_bytes;
    reader.read(0, file.data_bytes, [&](std::span<const std::byte> piece) {
      if (at < 0 || std::memcmp(saved.data() + at, piece.data(), piece.size()) != 0)
        throw std::logic_error("a changed byte was passed on");
      at += static_cast<int64_t>(piece.size());
    });
    try {
      detail::read_safetensors_header(*disk.open(found.folder + "/" + file.name), file.name);
    } catch (const CheckpointError&) {
      ++headers_refused;  // by readers of safetensors; we need it not
    }
  }
  return load_small(disk, "/run");
}

struct Tally {
  int64_t refused = 0, same = 0, other = 0;
  int64_t headers_refused = 0;  // of those that were not refused
};

// How a load of damaged files ended; a failure where it may not end so.
void judge(const Kind& kind, const Files& files, Tally& tally) {
  static const SmallContents kOne = small_contents(1, 1), kTwo = small_contents(2, 2);
  SimFiles disk = disk_with(files);
  try {
    const SmallContents found = load_all(disk, tally.headers_refused);
    // Another `latest`, or no manifest at the latest: the checkpoint before is as good.
    const bool same =
        found == kTwo || (found == kOne && (files.at("/run/latest") != sound_files().at("/run/latest") ||
                                            !files.contains(kManifest)));
    ++(same ? tally.same : tally.other);
    EXPECT_NE(kind.may, May::be_refused) << "was not refused";
    EXPECT_TRUE(same || kind.may == May::be_sound) << "loads, but as something else";
  } catch (const CheckpointError&) {
    ++tally.refused;
  } catch (const IoError&) {
    ++tally.refused;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
  }
}

TEST(Corruption, IsRefusedOrWithoutMeaning) {
  const unsigned first = seed();
  const int count = repeats(20000, 1000000);
  std::vector<Tally> tallies(kKinds.size());
  int64_t most = 0;
  std::chrono::nanoseconds longest{0};
  for (int i = 0; i < count && !HasFailure(); ++i) {
    Random random(first * 1000003U + static_cast<unsigned>(i));
    const size_t which = static_cast<size_t>(i) % kKinds.size();
    Files files = sound_files();
    while (files == sound_files()) kKinds[which].damage(files, random);
    SCOPED_TRACE(std::string(kKinds[which].name) + ", number " + std::to_string(i));
    const int64_t before = live_bytes;
    most_bytes = before;
    const auto start = std::chrono::steady_clock::now();
    judge(kKinds[which], files, tallies[which]);
    longest = std::max<std::chrono::nanoseconds>(longest, std::chrono::steady_clock::now() - start);
    most = std::max<int64_t>(most, most_bytes - before);
  }
  int64_t total = 0;
  for (size_t k = 0; k < kKinds.size(); ++k) {
    const Tally& tally = tallies[k];
    total += tally.refused + tally.same + tally.other;
    std::cout << kKinds[k].name << ": " << tally.refused << " refused, " << tally.same << " without meaning";
    if (kKinds[k].may == May::be_sound) std::cout << ", " << tally.other << " sound as changed";
    if (tally.headers_refused > 0)
      std::cout << " (" << tally.headers_refused << " headers are no safetensors)";
    std::cout << "\n";
  }
  std::cout << total << " in all; at most " << most << " bytes and "
            << std::chrono::duration_cast<std::chrono::milliseconds>(longest).count() << " ms\n";
  EXPECT_LT(most, 8 << 20);
  EXPECT_LT(longest, std::chrono::seconds(1));
}

}  // namespace
}  // namespace fsdp::testing
