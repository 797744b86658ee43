#include "files/block_file.h"

#include <fsdp/error.h>

#include <algorithm>

namespace fsdp::detail {

BlockWriter::BlockWriter(FileOps& files, const std::string& folder, std::string name,
                         const std::string& header, int64_t data_bytes)
    : file_(files.create(folder + "/" + name)) {
  saved_.name = std::move(name);
  saved_.header_bytes = static_cast<int64_t>(header.size());
  saved_.header = hash128(header);
  if (data_bytes > 0) file_->reserve(saved_.header_bytes + data_bytes);
  file_->write(std::as_bytes(std::span(header)), 0);
  pending_.reserve(static_cast<size_t>(kBlockBytes));
}

void BlockWriter::put(std::span<const std::byte> block) {
  saved_.blocks.push_back(hash128(block));
  file_->write(block, saved_.header_bytes + saved_.data_bytes);
  saved_.data_bytes += static_cast<int64_t>(block.size());
}

void BlockWriter::append(std::span<const std::byte> bytes) {
  const auto whole = static_cast<size_t>(kBlockBytes);
  while (!bytes.empty()) {
    if (pending_.empty() && bytes.size() >= whole) {
      put(bytes.first(whole));
      bytes = bytes.subspan(whole);
      continue;
    }
    const size_t n = std::min(whole - pending_.size(), bytes.size());
    pending_.insert(pending_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    if (pending_.size() < whole) continue;
    put(pending_);
    pending_.clear();
  }
}

SavedFile BlockWriter::finish() {
  if (!pending_.empty()) put(pending_);
  file_->sync();
  file_->close();
  return std::move(saved_);
}

BlockReader::BlockReader(const FileOps& files, const std::string& folder, const SavedFile& saved)
    : path_(folder + "/" + saved.name), saved_(saved) {
  file_ = files.open(path_);
  const int64_t size = file_->size();
  if (size != saved.header_bytes + saved.data_bytes)
    throw CheckpointError(path_ + " has " + std::to_string(size) + " bytes; it was saved with " +
                          std::to_string(saved.header_bytes + saved.data_bytes));
  std::vector<std::byte> header(static_cast<size_t>(saved.header_bytes));
  file_->read(header, 0);
  if (hash128(header) != saved.header)
    throw CheckpointError(path_ +
                          " is damaged, or a file of another checkpoint: its header is not the one saved");
}

int64_t BlockReader::block_bytes(int64_t index) const {
  return std::min(kBlockBytes, saved_.data_bytes - index * kBlockBytes);
}

// Reads a whole block and checks it.
void BlockReader::fetch(int64_t index, std::span<std::byte> into) const {
  const int64_t first = saved_.header_bytes + index * kBlockBytes;
  file_->read(into, first);
  const bool hashed = !saved_.blocks.empty();  // files of other programs are not
  if (hashed && hash128(into) != saved_.blocks[static_cast<size_t>(index)])
    throw CheckpointError(path_ + " is damaged: bytes " + std::to_string(first) + " to " +
                          std::to_string(first + static_cast<int64_t>(into.size())) +
                          " do not have the hash they were saved with");
}

std::span<const std::byte> BlockReader::block(int64_t index) {
  if (index == last_index_) return last_;
  last_index_ = -1;
  last_.resize(static_cast<size_t>(block_bytes(index)));
  fetch(index, last_);
  last_index_ = index;
  return last_;
}

void BlockReader::read(int64_t begin, int64_t end, const Take& take) {
  while (begin < end) {
    const int64_t index = begin / kBlockBytes;
    const int64_t stop = std::min(end, (index + 1) * kBlockBytes);
    take(block(index).subspan(static_cast<size_t>(begin - index * kBlockBytes),
                              static_cast<size_t>(stop - begin)));
    begin = stop;
  }
}

void BlockReader::read_into(int64_t begin, std::span<std::byte> into) {
  while (!into.empty()) {
    const int64_t index = begin / kBlockBytes;
    const int64_t skip = begin - index * kBlockBytes;
    const auto n = std::min(static_cast<size_t>(block_bytes(index) - skip), into.size());
    if (n == static_cast<size_t>(block_bytes(index)))
      fetch(index, into.first(n));
    else
      std::ranges::copy(block(index).subspan(static_cast<size_t>(skip), n), into.begin());
    into = into.subspan(n);
    begin += static_cast<int64_t>(n);
  }
}

}  // namespace fsdp::detail
