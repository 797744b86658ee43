#include "trainer/data/documentation.h"

namespace fsdp::data {

std::string documentation_text() {
  std::string all;
  for (const DocumentationPage& page : documentation_pages()) {
    if (!all.empty()) all += "\n";
    all += page.text;
  }
  return all;
}

}  // namespace fsdp::data
