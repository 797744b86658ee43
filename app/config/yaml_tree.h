// A YAML text as a tree that knows its lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/config/problem.h"

namespace fsdp::config {

// The line of the first byte that is not UTF-8, or is 0; 0: there is none.
int line_of_bad_utf8(const std::string& text);

struct Tree {
  enum class Kind : uint8_t { null, scalar, list, map };
  struct Member;

  Kind kind = Kind::null;
  std::string text;     // of a scalar
  bool quoted = false;  // the scalar stood in quotes: it is a text, whatever it looks like
  int line = 0;         // counted from 1
  std::vector<Tree> items;
  std::vector<Member> members;  // in the order of the file, duplicates included
};

struct Tree::Member {
  std::string key;
  int line = 0;
  Tree value;
};

// The tree of `text`, a file called `file`. Adds a problem with file and line for what is not YAML, for bad
// indentation, for keys that are no plain words and for texts made to harm; the tree is then of no use.
Tree parse_yaml(const std::string& text, const std::string& file, Problems& problems);

// Problems of one line each that yaml-cpp reports late or not at all: indentation that fits no level, tabs,
// quotes and brackets that are not closed, a missing space after a colon.
void check_lines(const std::string& text, const std::string& file, Problems& problems);

}  // namespace fsdp::config
