// The documentation of this project, compiled in: a corpus that need not be downloaded.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fsdp::data {

struct DocumentationPage {
  std::string_view name;  // "docs/design.md"
  std::string_view text;
};

// README.md, then docs/*.md sorted by name, as they were when this was built.
std::span<const DocumentationPage> documentation_pages();

// All pages, a blank line between them.
std::string documentation_text();

}  // namespace fsdp::data
