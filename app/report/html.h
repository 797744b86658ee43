// HTML and JSON from texts of any bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::report {

// `text` as UTF-8: bytes that are none become U+FFFD, control characters but tab and line break too.
std::string clean_utf8(std::string_view text);
// `text` as the content of an element or of a quoted attribute.
std::string escaped(std::string_view text);
// `json` as the content of a <script>: no text in it can end the element.
std::string for_script(std::string json);

// "2026-03-01 14:02:10 UTC". `seconds` since 1970.
std::string date_text(double seconds);
// Plain decimal with one digit behind the point at most: "12.5".
std::string short_decimal(double value);

// A cell of a table; `html` is put in as it is.
struct Cell {
  std::string html = {};
  bool number = false;  // aligned at its end
};
Cell text_cell(std::string_view text);
Cell number_cell(std::string_view text);
// Scrolls by itself where the page is narrower.
std::string table(const std::vector<Cell>& head, const std::vector<std::vector<Cell>>& rows);

}  // namespace fsdp::report
