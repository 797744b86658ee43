#include "app/report/html.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>

namespace fsdp::report {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Number of bytes of the character that begins `text`; 0: it is no UTF-8.
size_t character_size(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const size_t size = first < 0x80   ? 1
                      : first < 0xc2 ? 0
                      : first < 0xe0 ? 2
                      : first < 0xf0 ? 3
                      : first < 0xf5 ? 4
                                     : 0;
  if (size == 0 || size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0U) != 0x80) return 0;
  if (size < 3) return size;
  const unsigned second = byte(1);
  const bool too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool no_character = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return too_long || no_character ? 0 : size;
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
}

std::string row_of(const std::vector<Cell>& cells, const char* element) {
  std::string html = "<tr>";
  for (const Cell& cell : cells)
    html +=
        std::string("<") + element + (cell.number ? " class=\"n\">" : ">") + cell.html + "</" + element + ">";
  return html + "</tr>\n";
}

}  // namespace

std::string clean_utf8(std::string_view text) {
  std::string clean;
  for (size_t at = 0; at < text.size();) {
    const size_t size = character_size(text.substr(at));
    if (size == 0 || (size == 1 && is_control(text[at])))
      clean += kReplacement;
    else
      clean += text.substr(at, size);
    at += size == 0 ? 1 : size;
  }
  return clean;
}

std::string escaped(std::string_view text) {
  std::string html;
  for (const char c : clean_utf8(text)) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string for_script(std::string json) {
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;) json.replace(at, 1, "\\u003c");
  return json;
}

std::string date_text(double seconds) {
  if (!(seconds > 0) || seconds > 1e11) return "unknown";
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

std::string short_decimal(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  std::string plain = text.data();
  if (plain.ends_with(".0")) plain.resize(plain.size() - 2);
  return plain == "-0" ? "0" : plain;
}

Cell text_cell(std::string_view text) { return {escaped(text), false}; }
Cell number_cell(std::string_view text) { return {escaped(text), true}; }

std::string table(const std::vector<Cell>& head, const std::vector<std::vector<Cell>>& rows) {
  std::string html = "<div class=\"scroll\"><table>\n";
  if (!head.empty()) html += "<thead>" + row_of(head, "th") + "</thead>\n";
  html += "<tbody>\n";
  for (const auto& row : rows) html += row_of(row, "td");
  return html + "</tbody></table></div>\n";
}

}  // namespace fsdp::report
