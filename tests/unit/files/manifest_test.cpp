#include "files/manifest.h"

#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <limits>

namespace fsdp::testing {
namespace {

using detail::Box;
using detail::hash128;
using detail::Json;
using detail::Manifest;
using detail::SavedBox;
using detail::SavedFile;
using detail::SavedTensor;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

SavedFile file(const std::string& name, int64_t data_bytes) {
  SavedFile saved{.name = name,
                  .header_bytes = 64,
                  .data_bytes = data_bytes,
                  .header = hash128("h" + name),
                  .blocks = {}};
  for (int64_t at = 0; at < data_bytes; at += detail::kBlockBytes)
    saved.blocks.push_back(hash128(name + std::to_string(at)));
  return saved;
}

SavedTensor tensor(const std::string& dtype, std::vector<int64_t> shape, std::vector<SavedBox> boxes) {
  return {
      .dtype = dtype, .shape = std::move(shape), .order = {}, .real_pairs = false, .boxes = std::move(boxes)};
}

SavedBox box(int32_t file, int64_t offset, std::vector<int64_t> start, std::vector<int64_t> extent) {
  return {.file = file, .offset = offset, .box = {.start = std::move(start), .extent = std::move(extent)}};
}

// Two files; tensors of every kind.
Manifest example() {
  Manifest manifest;
  manifest.id = "0123";
  manifest.step = 100;
  manifest.world = 2;
  manifest.writer = "fsdp.cpp 0.1.0";
  manifest.files = {file("rank-0.safetensors", 2 * detail::kBlockBytes + 1), file("rank-1.safetensors", 300)};
  manifest.tensors["w"] = tensor("F32", {4, 3}, {box(0, 0, {0, 0}, {2, 3}), box(1, 8, {2, 0}, {2, 3})});
  manifest.tensors["scalar"] = tensor("I64", {}, {box(1, 292, {}, {})});
  manifest.tensors["none"] = tensor("F16", {0, 5}, {box(0, 0, {0, 0}, {0, 5})});
  SavedTensor channels_last = tensor("F32", {2, 3, 2}, {box(0, 40, {0, 0, 0}, {2, 3, 2})});
  channels_last.order = {0, 2, 1};
  manifest.tensors["channels_last"] = channels_last;
  SavedTensor complex = tensor("F64", {3, 2}, {box(1, 100, {0, 0}, {3, 2})});
  complex.real_pairs = true;
  manifest.tensors["complex"] = complex;
  manifest.aliases["tied"] = "w";
  manifest.run = {{"options", {{"lr", 0.1}, {"names", {"a", "b"}}}}, {"epoch", 3}};
  return manifest;
}

// `json` as a manifest's text, with the hash it must have.
std::string text_of(const Json& json) {
  std::string text = json.dump();
  text.back() = ',';
  text += "\"check\": \"";
  return text + to_hex(hash128(text)) + "\"\n}\n";
}

Json json_of(const Manifest& manifest) {
  Json json = Json::parse(manifest.to_text());
  json.erase("check");
  return json;
}

void expect_refused(const std::string& text, const std::string& why) {
  EXPECT_THAT([&] { Manifest::parse(text, "m"); }, ThrowsMessage<CheckpointError>(HasSubstr(why)));
  EXPECT_THAT([&] { Manifest::parse(text, "m"); }, ThrowsMessage<CheckpointError>(StartsWith("m")));
}

// The example with the value at `pointer` replaced.
void expect_refused_with(const std::string& pointer, const Json& value, const std::string& why) {
  SCOPED_TRACE(pointer + " = " + value.dump().substr(0, 100));
  Json json = json_of(example());
  json[Json::json_pointer(pointer)] = value;
  expect_refused(text_of(json), why);
}

void expect_refused_without(const std::string& parent, const std::string& key) {
  Json json = json_of(example());
  json[Json::json_pointer(parent)].erase(key);
  expect_refused(text_of(json), "no '" + key + "'");
}

void expect_boxes(const SavedTensor& tensor, const std::string& why) {
  Manifest manifest = example();
  manifest.tensors["t"] = tensor;
  if (why.empty()) {
    EXPECT_NO_THROW(manifest.check("m"));
    EXPECT_EQ(Manifest::parse(manifest.to_text(), "m"), manifest);
    return;
  }
  EXPECT_THAT([&] { manifest.check("m"); }, ThrowsMessage<CheckpointError>(HasSubstr(why)));
  expect_refused(manifest.to_text(), why);
  EXPECT_THAT([&] { manifest.check("m"); }, ThrowsMessage<CheckpointError>(HasSubstr("'t'")));
}

TEST(Manifest, ComesBackAsItWasWritten) {
  const Manifest manifest = example();
  EXPECT_EQ(Manifest::parse(manifest.to_text(), "m"), manifest);
  EXPECT_EQ(Manifest::parse(text_of(json_of(manifest)), "m"), manifest);
  EXPECT_EQ(Manifest::parse(Manifest().to_text(), "m"), Manifest());
}

TEST(Manifest, PartsOfRanksMakeTheWhole) {
  const Manifest whole = example();
  std::vector<Manifest> ranks(2);
  for (size_t rank = 0; rank < 2; ++rank) ranks[rank].files = {whole.files[rank]};
  for (const auto& [name, saved] : whole.tensors)
    for (const SavedBox& one : saved.boxes) {
      SavedTensor& mine = ranks[static_cast<size_t>(one.file)].tensors.try_emplace(name, saved).first->second;
      if (mine.boxes.size() == saved.boxes.size()) mine.boxes.clear();
      mine.boxes.push_back(one);
      mine.boxes.back().file = 0;
    }
  ranks[0].aliases = ranks[1].aliases = whole.aliases;
  ranks[0].run = whole.run;
  Manifest together;
  std::tie(together.id, together.step, together.world, together.writer) =
      std::tie(whole.id, whole.step, whole.world, whole.writer);
  for (const Manifest& rank : ranks) together.add_part(rank.part(), "rank");
  together.check("all");
  EXPECT_EQ(together, whole);
}

TEST(Manifest, RanksThatDoNotFitAreRefused) {
  const auto refused = [](const std::function<void(Manifest&)>& change, const std::string& why) {
    Manifest all = example();
    Manifest other;
    other.tensors = example().tensors;
    change(other);
    EXPECT_THAT([&] { all.add_part(other.part(), "rank 1"); },
                ThrowsMessage<CheckpointError>(HasSubstr(why)));
  };
  refused([](Manifest& m) { m.tensors["w"].dtype = "F16"; }, "'w' has another dtype or shape");
  refused([](Manifest& m) { m.tensors["w"].shape = {3, 4}; }, "'w' has another dtype or shape");
  refused([](Manifest& m) { m.tensors["channels_last"].order = {}; }, "another dtype or shape");
  refused([](Manifest& m) { m.tensors["complex"].real_pairs = false; }, "another dtype or shape");
  refused([](Manifest& m) { m.aliases["tied"] = "scalar"; }, "'tied' is another name of");
}

TEST(Manifest, EveryByteCounts) {
  const std::string text = example().to_text();
  for (size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_THROW(Manifest::parse(changed, "m"), CheckpointError) << at;
    EXPECT_THROW(Manifest::parse(text.substr(0, at), "m"), CheckpointError) << at;
  }
  expect_refused(text + "\n", "does not end with its hash");
  expect_refused("", "does not end with its hash");
  expect_refused("{}", "does not end with its hash");
}

TEST(Manifest, AHashInAnotherSpellingIsRefused) {
  std::string text = example().to_text();
  const size_t letter = text.find_first_of("abcdef", text.size() - 36);
  ASSERT_NE(letter, std::string::npos);
  text[letter] = static_cast<char>(text[letter] - 32);
  expect_refused(text, "does not have the hash");
}

TEST(Manifest, VersionsItDoesNotKnowAreRefused) {
  expect_refused_with("/format", 3, "format version 3; this build reads 1 to 2. Load it with a newer build");
  expect_refused_with("/format", 0, "format version 0");
  expect_refused_with("/format", -1, "format version -1");
  expect_refused_with("/format", "1", "not an integer");
  expect_refused_with("/block_bytes", 4096, "another size of blocks");
}

TEST(Manifest, EveryMemberIsNeeded) {
  for (const char* key :
       {"format", "id", "step", "world", "writer", "block_bytes", "run", "aliases", "tensors", "files"})
    expect_refused_without("", key);
  for (const char* key : {"name", "header_bytes", "data_bytes", "header", "blocks"})
    expect_refused_without("/files/0", key);
  for (const char* key : {"dtype", "shape", "boxes"}) expect_refused_without("/tensors/w", key);
}

TEST(Manifest, EveryMemberHasItsType) {
  for (const char* pointer : {"/format",
                              "/id",
                              "/step",
                              "/world",
                              "/writer",
                              "/block_bytes",
                              "/run",
                              "/aliases",
                              "/tensors",
                              "/files",
                              "/files/0",
                              "/files/0/name",
                              "/files/0/header_bytes",
                              "/files/0/data_bytes",
                              "/files/0/header",
                              "/files/0/blocks",
                              "/tensors/w",
                              "/tensors/w/dtype",
                              "/tensors/w/shape",
                              "/tensors/w/boxes",
                              "/tensors/w/boxes/0",
                              "/tensors/w/boxes/0/0",
                              "/tensors/channels_last/order",
                              "/tensors/complex/real_pairs",
                              "/aliases/tied"})
    for (const Json& value : {Json(nullptr), Json(1.5), Json::array({Json::array()})}) {
      if (value.is_array() && std::string(pointer) == "/tensors/w/boxes/0") continue;
      Json json = json_of(example());
      json[Json::json_pointer(pointer)] = value;
      EXPECT_THROW(Manifest::parse(text_of(json), "m"), CheckpointError) << pointer << " = " << value;
    }
}

TEST(Manifest, NamesThatLeadOutOfTheFolderAreRefused) {
  for (const char* name :
       {"../x", "..", ".", "", "/etc/passwd", "a/b", "a\\b", ".hidden", "a b", "a\nb", "\xc3\xa4"})
    expect_refused_with("/files/0/name", name, "not the name of a file here");
  expect_refused_with("/files/0/name", std::string("a\0b", 3), "not the name of a file here");
  expect_refused_with("/files/0/name", std::string(201, 'a'), "not the name of a file here");
  EXPECT_TRUE(detail::is_plain_name(std::string(200, 'a')));
}

TEST(Manifest, FilesThatDoNotFitAreRefused) {
  expect_refused_with("/files/1/name", "rank-0.safetensors", "a file is there twice");
  expect_refused_with("/files/0/header", std::string(31, 'a'), "32 hexadecimal digits");
  expect_refused_with("/files/0/header", std::string(32, 'A'), "32 hexadecimal digits");
  expect_refused_with("/files/0/blocks", std::string(96, 'g'), "32 hexadecimal digits");
  expect_refused_with("/files/0/blocks", std::string(95, '0'), "not as many hashes as blocks");
  expect_refused_with("/files/0/blocks", std::string(64, '0'), "not as many hashes as blocks");
  expect_refused_with("/files/0/blocks", std::string(128, '0'), "not as many hashes as blocks");
  expect_refused_with("/files/0/data_bytes", 1, "not as many hashes as blocks");
  expect_refused_with("/files/0/data_bytes", int64_t{1} << 60, "not as many hashes as blocks");
  for (const Json& bytes : {Json(-1), Json(INT64_MAX), Json(UINT64_MAX), Json((int64_t{1} << 60) + 1)})
    expect_refused_with("/files/0/data_bytes", bytes, "not an integer that is possible there");
  for (const Json& bytes : {Json(-1), Json(7), Json(INT64_MAX)})
    expect_refused_with("/files/0/header_bytes", bytes, "not an integer that is possible there");
}

TEST(Manifest, BoxesThatDoNotCoverTheirTensorAreRefused) {
  const std::string outside = "lies outside", covered = "is not covered", run = "is no run";
  expect_boxes(tensor("U8", {4}, {box(0, 0, {0}, {4})}), "");
  expect_boxes(tensor("U8", {4}, {box(1, 0, {3}, {1}), box(0, 0, {0}, {3})}), "");
  expect_boxes(tensor("U8", {4}, {box(0, 0, {0}, {5})}), outside);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {1}, {4})}), outside);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {INT64_MAX}, {1})}), outside);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {INT64_MAX}, {INT64_MAX})}), outside);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {0}, {0}), box(0, 0, {0}, {4})}), outside);
  expect_boxes(tensor("U8", {4}, {}), covered);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {0}, {3})}), covered);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {1}, {3})}), covered);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {0}, {2}), box(0, 0, {3}, {1})}), covered);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {0}, {3}), box(0, 0, {2}, {2})}), covered);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {0}, {4}), box(0, 0, {0}, {4})}), covered);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {0}, {2}), box(0, 0, {0}, {2})}), covered);
  expect_boxes(tensor("U8", {4}, {box(0, 0, {0}, {2}), box(0, 0, {1}, {2})}), covered);
  expect_boxes(tensor("U8", {}, {box(0, 0, {}, {}), box(0, 0, {}, {})}), covered);
  expect_boxes(tensor("U8", {2, 2}, {box(0, 0, {0, 0}, {2, 1}), box(0, 0, {0, 1}, {2, 1})}), run);
  expect_boxes(tensor("U8", {2, 2, 2}, {box(0, 0, {0, 0, 0}, {2, 1, 2})}), run);
  expect_boxes(tensor("U8", {2, 1}, {box(0, 0, {0, 0}, {2, 1})}), "");
}

TEST(Manifest, BoxesLieInFilesThatAreThere) {
  expect_boxes(tensor("F32", {2}, {box(1, 292, {0}, {2})}), "");
  expect_boxes(tensor("F32", {2}, {box(1, 293, {0}, {2})}), "ends behind the end");
  expect_boxes(tensor("F32", {2}, {box(1, INT64_MAX, {0}, {2})}), "ends behind the end");
  expect_boxes(tensor("F32", {76}, {box(1, 0, {0}, {76})}), "ends behind the end");
  expect_boxes(tensor("F64", {INT64_MAX / 8}, {box(1, 0, {0}, {INT64_MAX / 8})}), "ends behind the end");
  expect_boxes(tensor("F32", {2}, {box(2, 0, {0}, {2})}), "in a file that is not there");
  expect_boxes(tensor("F32", {2}, {box(INT32_MAX, 0, {0}, {2})}), "in a file that is not there");
  expect_refused_with("/tensors/w/boxes/0/0", int64_t{1} << 32, "a box has not as many dimensions");
  expect_refused_with("/tensors/w/boxes/0/1", -1, "not an integer");
  expect_refused_with("/tensors/w/boxes/0/2", -1, "not an integer");
  expect_refused_with("/tensors/w/boxes/0/1", Json::parse("18446744073709551615"), "not an integer");
  expect_refused_with("/tensors/w/boxes/0", {0, 0, 0, 0, 2}, "not as many dimensions");
  expect_refused_with("/tensors/w/boxes/0", Json::array(), "not as many dimensions");
}

TEST(Manifest, ShapesThatCannotBeAreRefused) {
  expect_boxes(tensor("F32x", {2}, {box(0, 0, {0}, {2})}), "unknown dtype");
  expect_boxes(tensor("F32", {INT64_MAX}, {box(0, 0, {0}, {INT64_MAX})}), "too large");
  expect_boxes(tensor("U8", {INT64_MAX, 2}, {box(0, 0, {0, 0}, {INT64_MAX, 2})}), "can be counted");
  const std::vector<int64_t> ones(65, 1);
  Manifest manifest = example();
  manifest.tensors["t"] = tensor("U8", ones, {box(0, 0, std::vector<int64_t>(65, 0), ones)});
  expect_refused(manifest.to_text(), "too many dimensions");
}

TEST(Manifest, OrderNamesEveryDimensionOnce) {
  SavedTensor permuted = tensor("U8", {2, 3}, {box(0, 0, {0, 0}, {2, 1}), box(0, 2, {0, 1}, {2, 2})});
  expect_boxes(permuted, "is no run");
  permuted.order = {1, 0};
  expect_boxes(permuted, "");
  permuted.boxes = {box(0, 0, {0, 0}, {1, 3}), box(0, 3, {1, 0}, {1, 3})};
  expect_boxes(permuted, "is no run");
  for (const std::vector<int64_t>& order :
       std::vector<std::vector<int64_t>>{{0}, {0, 0}, {1, 2}, {0, 1, 2}, {0, INT64_MAX}}) {
    permuted.order = order;
    expect_boxes(permuted, "'order' does not name every dimension once");
  }
}

TEST(Manifest, RealPairsAreF64) {
  SavedTensor pairs = tensor("F64", {2, 2}, {box(0, 0, {0, 0}, {2, 2})});
  pairs.real_pairs = true;
  expect_boxes(pairs, "");
  SavedTensor other = pairs;
  other.dtype = "F32";
  expect_boxes(other, "is no complex128");
  other = tensor("F64", {2, 3}, {box(0, 0, {0, 0}, {2, 3})});
  other.real_pairs = true;
  expect_boxes(other, "is no complex128");
  other = tensor("F64", {}, {box(0, 0, {}, {})});
  other.real_pairs = true;
  expect_boxes(other, "is no complex128");
}

TEST(Manifest, ATensorWithoutElementsHasOneBox) {
  expect_boxes(tensor("F32", {0, 3}, {box(1, 300, {0, 0}, {0, 3})}), "");
  expect_boxes(tensor("F32", {INT64_MAX, 0}, {box(0, 0, {0, 0}, {INT64_MAX, 0})}), "");
  expect_boxes(tensor("F32", {0, 3}, {}), "is not covered");
  expect_boxes(tensor("F32", {0}, {box(0, 0, {0}, {0}), box(0, 0, {0}, {0})}), "is not covered");
  expect_boxes(tensor("F32", {0}, {box(1, 301, {0}, {0})}), "ends behind the end");
  expect_boxes(tensor("F32", {0}, {box(0, 0, {0}, {1})}), "outside");
  expect_boxes(tensor("F32", {0}, {box(0, 0, {5}, {0})}), "outside");
  expect_boxes(tensor("F32", {0, 3}, {box(0, 0, {0, INT64_MAX}, {0, 3})}), "outside");
  expect_boxes(tensor("F32", {0}, {box(9, 0, {0}, {0})}), "not there");
}

TEST(Manifest, AliasesNameTensors) {
  expect_refused_with("/aliases/tied", "nothing", "'tied' is no other name");
  expect_refused_with("/aliases/w", "w", "'w' is no other name");
  expect_refused_with("/aliases/tied2", "tied", "'tied2' is no other name");
}

TEST(Manifest, KeysThatAreThereTwiceAreRefused) {
  const std::string good = example().to_text();
  const auto with = [&](const std::string& before, const std::string& more) {
    std::string text = good.substr(0, good.size() - 36);
    text.insert(text.find(before), more);
    return text + to_hex(hash128(text)) + "\"\n}\n";
  };
  EXPECT_NO_THROW(Manifest::parse(with("\"step\"", "\n"), "m"));
  expect_refused(with("\"step\"", "\"step\": 3,\n"), "'step' is there twice");
  expect_refused(with("\"dtype\"", "\"dtype\":\"F32\","), "'dtype' is there twice");
  expect_refused(with("\"step\"", "\"check\": \"\",\n"), "'check' is there twice");
  expect_refused(with("\"step\"", "\"\\u0073tep\": 3,\n"), "'step' is there twice");
}

TEST(Manifest, DeepNestingIsRefused) {
  const auto nested = [](int depth) {
    return std::string("\"deep\":") + std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']') + ",";
  };
  const std::string good = example().to_text();
  for (const int depth : {5, 20, 1000, 1000000}) {
    std::string text = good.substr(0, good.size() - 36);
    text.insert(text.find("\"epoch\""), nested(depth));
    text += to_hex(hash128(text)) + "\"\n}\n";
    if (depth == 5)
      EXPECT_NO_THROW(Manifest::parse(text, "m"));
    else
      expect_refused(text, "nested deeper than");
  }
}

TEST(Manifest, WhatCouldNotBeReadBackIsNotWritten) {
  Manifest manifest = example();
  manifest.run["text"] = "\xff";
  EXPECT_THROW(manifest.to_text(), CheckpointError);
  manifest = example();
  Json deep = 1;
  for (int i = 0; i < 20; ++i) deep = Json::array({deep});
  manifest.run["deep"] = deep;
  EXPECT_THROW(manifest.check("m"), CheckpointError);
}

TEST(Manifest, NumbersThatAreHugeAreRefused) {
  for (const char* number : {"1e400", "-1e400"}) {
    std::string text = example().to_text();
    text = text.substr(0, text.size() - 36);
    text.replace(text.find("\"step\": 100"), 11, std::string("\"step\": ") + number);
    expect_refused(text + to_hex(hash128(text)) + "\"\n}\n", "not JSON");
  }
  expect_refused_with("/step", 1e300, "not an integer");
  expect_refused_with("/step", UINT64_MAX, "not an integer");
  expect_refused_with("/step", -1, "not an integer that is possible");
  expect_refused_with("/world", 0, "not an integer that is possible");
  expect_refused_with("/world", int64_t{1} << 31, "not an integer that is possible");
}

}  // namespace
}  // namespace fsdp::testing
