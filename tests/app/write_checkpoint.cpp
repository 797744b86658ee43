// write_checkpoint RUN STEP RANKS [WORD...]: a checkpoint of a tiny GPT-2 as so many ranks would save it.
// write_checkpoint sign MANIFEST: gives a manifest, whose last key is "check", the hash it must end with.
//
// Words: `extras` (tensors of other dtypes and orders), `rowmajor` (none of them channels-last), `untied`,
// `noconfig`, `renamed` (the tied weight under the head's name), `changed` (a few other values), `bf16`.
// Moments lie in files of their own, as save() puts them.
// Element i of a float tensor is ((7 i + 13 length of its name) mod 251) / 8 - 10.
#include <cstring>
#include <iostream>
#include <set>

#include "files/block_file.h"
#include "files/run_folder.h"
#include "files/safetensors.h"
#include "layout/boxes.h"

using namespace fsdp::detail;

namespace {

struct Plain {
  std::string name;
  std::string dtype = "F32";
  std::vector<int64_t> shape;
  std::vector<int64_t> order;
  bool real_pairs = false;
};

std::vector<Plain> tiny_gpt2(const std::set<std::string>& words) {
  const std::string dtype = words.contains("bf16") ? "BF16" : "F32";
  std::vector<Plain> all;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    all.push_back({.name = name, .dtype = dtype, .shape = shape, .order = {}});
    all.push_back({.name = "state." + name + ".exp_avg", .shape = std::move(shape), .order = {}});
  };
  add(words.contains("renamed") ? "lm_head.weight" : "transformer.wte.weight", {11, 8});
  add("transformer.wpe.weight", {6, 8});
  const std::string h = "transformer.h.0.";
  for (const char* norm : {"ln_1", "ln_2"})
    for (const char* part : {".weight", ".bias"}) add(h + norm + part, {8});
  add(h + "attn.c_attn.weight", {8, 24});
  add(h + "attn.c_attn.bias", {24});
  add(h + "attn.c_proj.weight", {8, 8});
  add(h + "attn.c_proj.bias", {8});
  add(h + "mlp.c_fc.weight", {8, 32});
  add(h + "mlp.c_fc.bias", {32});
  add(h + "mlp.c_proj.weight", {32, 8});
  add(h + "mlp.c_proj.bias", {8});
  add("transformer.ln_f.weight", {8});
  add("transformer.ln_f.bias", {8});
  if (words.contains("untied")) add("lm_head.weight", {11, 8});
  all.push_back({.name = "state.step", .shape = {}, .order = {}});
  return all;
}

void add_extras(std::vector<Plain>& all, bool row_major) {
  const std::vector<int64_t> last = row_major ? std::vector<int64_t>{} : std::vector<int64_t>{0, 2, 3, 1};
  all.push_back({.name = "conv.weight", .shape = {4, 3, 5, 2}, .order = last});
  all.push_back({.name = "conv.empty", .shape = {4, 0}, .order = {}});
  all.push_back({.name = "conv.phase", .dtype = "F64", .shape = {3, 2}, .order = {}, .real_pairs = true});
  all.push_back({.name = "conv.steps", .dtype = "I64", .shape = {7}, .order = {}});
}

// The element as bytes of its dtype, at the end of `data`.
void append_element(std::vector<std::byte>& data, const Plain& tensor, int64_t i, bool changed) {
  float value = static_cast<float>((7 * i + 13 * static_cast<int64_t>(tensor.name.size())) % 251) / 8 - 10;
  if (changed && tensor.name.ends_with("mlp.c_fc.weight") && i % 100 == 0)
    value += 0.25F * static_cast<float>(1 + i / 100);
  const auto put = [&](const auto& element, size_t from = 0) {
    const auto bytes = std::as_bytes(std::span(&element, 1)).subspan(from);
    data.insert(data.end(), bytes.begin(), bytes.end());
  };
  if (tensor.dtype == "F64") return put(static_cast<double>(value));
  if (tensor.dtype == "I64") return put(i + (changed ? 1 : 0));
  put(value, tensor.dtype == "BF16" ? 2 : 0);
}

std::vector<int64_t> permuted(const std::vector<int64_t>& values, const std::vector<int64_t>& order) {
  if (order.empty()) return values;
  std::vector<int64_t> moved;
  for (const int64_t d : order) moved.push_back(values[static_cast<size_t>(d)]);
  return moved;
}

std::vector<int64_t> restored(const std::vector<int64_t>& values, const std::vector<int64_t>& order) {
  if (order.empty()) return values;
  std::vector<int64_t> back(values.size());
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = values[i];
  return back;
}

// Elements of a box, row-major in the order of the shape.
void append_box(std::vector<std::byte>& data, const Plain& tensor, const Box& box, bool changed) {
  std::vector<int64_t> at(tensor.shape.size(), 0);
  for (int64_t n = box.numel(); n > 0; --n) {
    int64_t index = 0;
    for (size_t d = 0; d < at.size(); ++d) index = index * tensor.shape[d] + box.start[d] + at[d];
    append_element(data, tensor, index, changed);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < box.extent[d]) break;
      at[d] = 0;
    }
  }
}

// What `rank` of `ranks` holds of a tensor: an equal part of its elements in memory order.
std::vector<Box> part_of(const Plain& tensor, int64_t rank, int64_t ranks) {
  const int64_t numel = checked_numel(tensor.shape, tensor.name);
  if (numel == 0) return {{.start = std::vector<int64_t>(tensor.shape.size(), 0), .extent = tensor.shape}};
  const int64_t begin = numel * rank / ranks, end = numel * (rank + 1) / ranks;
  std::vector<Box> boxes = boxes_of(permuted(tensor.shape, tensor.order), begin, end - begin);
  for (Box& box : boxes)
    box = {.start = restored(box.start, tensor.order), .extent = restored(box.extent, tensor.order)};
  return boxes;
}

Json gpt2_config() { return {{"model_type", "gpt2"}, {"n_head", 2}, {"layer_norm_epsilon", 1e-5}}; }

int sign(const std::string& path) {
  std::string text = read_text(posix_files(), path, int64_t{1} << 40);
  text.resize(text.rfind("\"check\":"));
  text += "\"check\": \"";
  text += to_hex(hash128(text)) + "\"\n}\n";
  posix_files().remove_file(path);
  write_text(posix_files(), path, text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "sign") return sign(argv[2]);
  if (argc < 4) return 2;
  const int64_t step = std::stoll(argv[2]), ranks = std::stoll(argv[3]);
  const std::set<std::string> words(argv + 4, argv + argc);
  std::vector<Plain> tensors = tiny_gpt2(words);
  if (words.contains("extras")) add_extras(tensors, words.contains("rowmajor"));

  RunFolder run(posix_files(), argv[1]);
  const std::string id = "00000000000000000000000000000001";
  const std::string begun = run.begin(step, id);
  Manifest manifest;
  manifest.id = id;
  manifest.step = step;
  manifest.world = static_cast<int>(ranks);
  manifest.writer = "a test";
  manifest.run = {{"seed", 7}, {"words", words}};
  if (!words.contains("noconfig")) manifest.run["model_config"] = gpt2_config();
  if (words.contains("renamed")) manifest.aliases["transformer.wte.weight"] = "lm_head.weight";
  if (!words.contains("renamed") && !words.contains("untied"))
    manifest.aliases["lm_head.weight"] = "transformer.wte.weight";

  for (int64_t rank = 0; rank < ranks; ++rank)
    for (const bool moments : {false, true}) {
      std::vector<SafetensorsEntry> entries;
      std::vector<std::byte> data;
      for (const Plain& tensor : tensors) {
        if (tensor.name.starts_with("state.") != moments) continue;
        SavedTensor& saved = manifest.tensors[tensor.name];
        saved.dtype = tensor.dtype;
        saved.shape = tensor.shape;
        saved.order = tensor.order;
        saved.real_pairs = tensor.real_pairs;
        const bool empty = checked_numel(tensor.shape, tensor.name) == 0;
        if (empty && rank > 0) continue;
        for (const Box& box : part_of(tensor, rank, ranks)) {
          const auto begin = static_cast<int64_t>(data.size());
          saved.boxes.push_back(
              {.file = static_cast<int32_t>(manifest.files.size()), .offset = begin, .box = box});
          if (!empty) append_box(data, tensor, box, words.contains("changed"));
          entries.push_back({.name = tensor.name + "@" + std::to_string(begin),
                             .dtype = tensor.dtype,
                             .shape = box.extent,
                             .begin = begin,
                             .end = static_cast<int64_t>(data.size())});
        }
      }
      const std::string name = "shard-" + std::to_string(rank) + (moments ? "-state-0" : "");
      BlockWriter writer(posix_files(), begun, name + ".safetensors", make_safetensors_header(entries, {}));
      writer.append(data);
      manifest.files.push_back(writer.finish());
    }
  manifest.check("the manifest");
  std::cout << argv[1] << "/" << run.commit(begun, step, manifest.to_text()) << "\n";
  return 0;
}
