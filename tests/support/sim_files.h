// A file system in memory that can lose power.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "files/file_ops.h"

namespace fsdp::testing {

// Note [A disk that loses power]
// A file's data last once the file is synced. A name (made, renamed, removed) lasts once its folder is
// synced; a file that is synced but whose name is not may vanish. lose_power() decides by a seed what else
// lasted: of a folder's names any of the changes since it was synced, whatever their order, though a rename
// is whole; of a file's data nothing, all, the beginning or some sectors of 512 bytes. Blocks without their
// data are zeros. So every disk that POSIX allows after a loss of power is possible, except that data written
// and never synced are not found in other files.
//
// Paths begin with "/" or are below it; ".." is not known and a std::logic_error. One thread at a time.
// A copy is another disk with the same files.
class SimFiles final : public detail::FileOps {
 public:
  SimFiles();

  // No file may be open.
  void lose_power(unsigned seed);

  // Everything on the disk, as one sees it: path -> data, folders with a "/" at the end.
  std::map<std::string, std::string> all() const;
  // Replaces or adds a file, as damage would: everything about it lasts.
  void put(const std::string& path, std::string data);

  detail::FilePtr create(const std::string& path) override;
  detail::FilePtr open(const std::string& path) const override;
  void make_folders(const std::string& path) override;
  void make_folder(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void sync_folder(const std::string& path) override;
  void remove_file(const std::string& path) override;
  void remove_folder(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) const override;
  bool exists(const std::string& path) const override;
  bool is_folder(const std::string& path) const override;
  std::shared_ptr<void> lock(const std::string& path) override;

 private:
  friend class SimFile;
  using Names = std::map<std::string, int>;  // -> node
  // What happened to names of a folder: `gone` is no more, `name` is `node`. Either may be empty.
  struct Change {
    std::string gone;
    std::string name;
    int node = -1;
  };
  struct Node {
    bool folder = false;
    std::string data, synced_data;
    Names names, synced_names;
    std::vector<Change> changes;  // since the folder was synced
  };
  struct Place {
    int folder = -1;
    std::string name;
    int node = -1;  // -1: nothing there
  };

  int add(bool folder);
  // Throws IoError where a folder above is missing.
  Place find(const std::string& path, const char* doing) const;
  Place find_existing(const std::string& path, const char* doing) const;
  void change(int folder, Change change);
  static void apply(Names& names, const Change& change);
  void drop_unreachable();

  std::map<int, Node> nodes_;  // 0: the root
  int next_ = 0;
  std::map<std::string, std::weak_ptr<void>> locks_;
};

}  // namespace fsdp::testing
