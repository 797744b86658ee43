# cmake -DOUTPUT=pages.cpp -DROOT=folder "-DPAGES=README.md;docs/a.md" -P embed_pages.cmake
#
# Writes a C++ file that defines documentation_pages() with the text of these files.
set(entries "")
foreach(page ${PAGES})
  file(READ "${ROOT}/${page}" text)
  string(FIND "${text}" ")FSDP_PAGE\"" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${page} has the mark that ends a page in the generated file")
  endif()
  string(APPEND entries "    {\"${page}\", R\"FSDP_PAGE(${text})FSDP_PAGE\"},\n")
endforeach()

file(WRITE "${OUTPUT}" "// Written by embed_pages.cmake.
#include <array>

#include \"trainer/data/documentation.h\"

namespace fsdp::data {

std::span<const DocumentationPage> documentation_pages() {
  static constexpr auto kPages = std::to_array<DocumentationPage>({
${entries}  });
  return kPages;
}

}  // namespace fsdp::data
")
