#include <fsdp/checkpoint_files.h>
#include <fsdp/error.h>

#include <algorithm>
#include <set>

#include "files/checkpoint_reader.h"
#include "files/element_difference.h"
#include "files/tensor_info.h"

namespace fsdp::detail {

namespace {

const SavedTensor* named_tensor(const Manifest& manifest, const std::string& name) {
  const auto alias = manifest.aliases.find(name);
  const auto found = manifest.tensors.find(alias == manifest.aliases.end() ? name : alias->second);
  return found == manifest.tensors.end() ? nullptr : &found->second;
}

std::set<std::string> names_of(const Manifest& manifest) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : manifest.tensors) names.insert(name);
  for (const auto& [alias, name] : manifest.aliases) names.insert(alias);
  return names;
}

struct TensorPair {
  SavedTensorInfo info;
  const SavedTensor* first;
  const SavedTensor* second;
};

// Sorts names into `result`; returns the pairs that have to be read.
std::vector<TensorPair> pair_tensors(const Manifest& first, const Manifest& second,
                                     CheckpointDifference& result) {
  std::vector<TensorPair> pairs;
  std::set<std::string> names = names_of(first);
  names.merge(names_of(second));
  std::set<std::pair<const SavedTensor*, const SavedTensor*>> seen;
  for (const std::string& name : names) {
    const SavedTensor* a = named_tensor(first, name);
    const SavedTensor* b = named_tensor(second, name);
    if (a == nullptr || b == nullptr) {
      (a == nullptr ? result.only_in_second : result.only_in_first).push_back(name);
      continue;
    }
    if (!seen.insert({a, b}).second) continue;  // tied in both, and compared already
    SavedTensorInfo one = tensor_info(name, *a), other = tensor_info(name, *b);
    if (one.dtype != other.dtype || one.shape != other.shape)
      result.mismatched.push_back({.first = std::move(one), .second = std::move(other)});
    else
      pairs.push_back({.info = std::move(one), .first = a, .second = b});
  }
  return pairs;
}

std::span<const std::byte> read_piece(SavedTensorReader& reader, int64_t begin, int64_t end,
                                      std::vector<std::byte>& into) {
  into.clear();
  reader.read(begin, end,
              [&](std::span<const std::byte> bytes) { into.insert(into.end(), bytes.begin(), bytes.end()); });
  return into;
}

std::vector<std::string> different_keys(const Json& a, const Json& b) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : a.items())
    if (!b.contains(key) || b.at(key) != value) keys.push_back(key);
  for (const auto& [key, value] : b.items())
    if (!a.contains(key)) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace

}  // namespace fsdp::detail

namespace fsdp {

CheckpointDifference diff_checkpoints(const std::string& first, const std::string& second,
                                      const ByteProgress& progress) {
  using namespace detail;
  CheckpointReader one(posix_files(), first), other(posix_files(), second);
  CheckpointDifference result;
  result.first = one.folder();
  result.second = other.folder();
  result.run_keys = different_keys(one.manifest().run, other.manifest().run);
  const std::vector<TensorPair> pairs = pair_tensors(one.manifest(), other.manifest(), result);
  int64_t total = 0, done = 0;
  for (const TensorPair& pair : pairs) total += pair.info.bytes;
  std::vector<std::byte> a, b;
  for (const TensorPair& pair : pairs) {
    SavedTensorReader from(one, *pair.first), to(other, *pair.second);
    ElementDifference found;
    for (int64_t begin = 0; begin < pair.info.bytes; begin += kBlockBytes) {
      const int64_t end = std::min(pair.info.bytes, begin + kBlockBytes);
      add_difference(pair.info.dtype, read_piece(from, begin, end, a), read_piece(to, begin, end, b), found);
      done += end - begin;
      if (progress) progress(done, total);
    }
    if (found.elements == 0) {
      ++result.equal;
      continue;
    }
    int64_t numel = 1;
    for (const int64_t extent : pair.info.shape) numel *= extent;
    result.changed.push_back({.name = pair.info.name,
                              .dtype = pair.info.dtype,
                              .elements = found.elements,
                              .of = numel,
                              .is_number = has_difference(pair.info.dtype),
                              .largest = found.largest});
  }
  return result;
}

}  // namespace fsdp
