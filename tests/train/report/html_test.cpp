#include "app/report/html.h"

#include <gmock/gmock.h>

namespace fsdp::report {
namespace {

TEST(Html, EscapesWhatHasAMeaning) {
  EXPECT_EQ(escaped("<a href=\"x\" b='y'>&</a>"),
            "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;&lt;/a&gt;");
}

TEST(Html, AnyBytesBecomeUtf8) {
  EXPECT_EQ(clean_utf8("é 日本 😀\n\t"), "é 日本 😀\n\t");
  EXPECT_EQ(clean_utf8("a\xff\x80z"), "a\xef\xbf\xbd\xef\xbf\xbdz");
  EXPECT_EQ(clean_utf8("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd") << "too long a form";
  EXPECT_EQ(clean_utf8("\xed\xa0\x80").find('\xed'), std::string::npos) << "a surrogate";
  EXPECT_EQ(clean_utf8("\xe6\x97"), "\xef\xbf\xbd\xef\xbf\xbd") << "cut off";
  EXPECT_EQ(clean_utf8("\x1b[31m"), "\xef\xbf\xbd[31m");
}

TEST(Html, NothingEndsAScript) {
  EXPECT_EQ(for_script(R"(["</script><!--"])"), R"(["\u003c/script>\u003c!--"])");
}

TEST(Html, Dates) {
  EXPECT_EQ(date_text(1772373730), "2026-03-01 14:02:10 UTC");
  EXPECT_EQ(date_text(0), "unknown");
  EXPECT_EQ(date_text(1e300), "unknown");
}

TEST(Html, ShortDecimals) {
  EXPECT_EQ(short_decimal(12.5), "12.5");
  EXPECT_EQ(short_decimal(12.04), "12");
  EXPECT_EQ(short_decimal(-0.01), "0");
}

TEST(Html, TablesEscapeTheirCells) {
  EXPECT_EQ(table({text_cell("a<b")}, {{number_cell("1")}}),
            "<div class=\"scroll\"><table>\n<thead><tr><th>a&lt;b</th></tr>\n</thead>\n"
            "<tbody>\n<tr><td class=\"n\">1</td></tr>\n</tbody></table></div>\n");
}

}  // namespace
}  // namespace fsdp::report
