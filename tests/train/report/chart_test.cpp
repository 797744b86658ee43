#include "app/report/chart.h"

#include <gmock/gmock.h>

#include <cmath>

namespace fsdp::report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

LineChart chart_of(std::vector<Point> points) {
  LineChart chart{.id = "loss", .title = "Loss", .steps = {0, 10}};
  chart.lines = {{.name = "train", .color = "c1", .points = std::move(points)}};
  return chart;
}

// Values 0 to 10 have an axis from -0.6 to 10.6, in a box of 1000 x 1000 that grows downwards.
TEST(LineChartTest, PointsLieWhereTheAxesPutThem) {
  EXPECT_THAT(draw(chart_of({{0, 0}, {5, 5}, {10, 10}})), HasSubstr("d=\"M0 946.4h0L500 500L1000 53.6\""));
}

TEST(LineChartTest, BreaksAndMarksWhatIsNotFinite) {
  const std::string html = draw(chart_of({{0, 0}, {2, 5}, {4, NAN}, {6, INFINITY}, {8, 5}, {10, 10}}));
  EXPECT_THAT(html, HasSubstr("d=\"M0 946.4h0L200 500M800 500h0L1000 53.6\""));
  EXPECT_THAT(html, HasSubstr("<b class=\"bad\" style=\"left:40%\" title=\"step 4: train nan\""));
  EXPECT_THAT(html, HasSubstr("title=\"step 6: train inf\""));
  EXPECT_THAT(html, HasSubstr("2 not finite"));
}

TEST(LineChartTest, MarksResumesAndSkippedSteps) {
  LineChart chart = chart_of({{0, 0}, {10, 10}});
  chart.resumes = {{5, "resumed after this step"}};
  chart.skipped = {7};
  EXPECT_THAT(draw(chart),
              AllOf(HasSubstr("<b class=\"resume\" style=\"left:50%\""),
                    HasSubstr("<b class=\"skipped\" style=\"left:70%\""), HasSubstr("1 skipped")));
  EXPECT_THAT(draw(chart_of({{0, 0}})), Not(HasSubstr("resumed")));
}

TEST(LineChartTest, OnePointIsSeen) {
  LineChart chart = chart_of({{1, 2.5}});
  chart.steps = {1, 1};
  EXPECT_THAT(draw(chart), HasSubstr("d=\"M500 500h0\"")) << "a dot, by the round end of a line of no length";
}

TEST(LineChartTest, ALongLineIsDrawnFaintWithItsAverage) {
  std::vector<Point> points;
  for (int i = 0; i <= 1000; ++i) points.push_back({i * 0.01, i % 2 + 0.0});
  LineChart chart = chart_of(points);
  chart.lines[0].smoothed = true;
  const std::string html = draw(chart);
  EXPECT_EQ(count_of(html, "<path class=\"line c1"), 2U);
  EXPECT_THAT(html, HasSubstr("line c1 faint"));
  EXPECT_LT(count_of(html, "L"), 2000U) << "thinned";
}

TEST(LineChartTest, WithoutPointsThereIsNone) {
  EXPECT_EQ(draw(chart_of({})), "");
  EXPECT_NE(draw(chart_of({{1, NAN}})), "") << "but a mark is shown";
}

TEST(LineChartTest, ItsNameIsReadAloudAndEscaped) {
  LineChart chart = chart_of({{0, 1}, {10, 2}});
  chart.title = "</h3><script>";
  chart.lines[0].name = "</script>";
  const std::string html = draw(chart);
  EXPECT_THAT(html, HasSubstr("aria-label=\"&lt;/h3&gt;&lt;script&gt; over the steps"));
  EXPECT_EQ(count_of(html, "<script"), 1U);
  EXPECT_EQ(count_of(html, "</script>"), 1U);
}

TEST(StackedChartTest, BarsStandUponEachOther) {
  const StackedChart chart{.id = "t",
                           .title = "Seconds",
                           .names = {"forward", "backward"},
                           .steps = {1, 2},
                           .values = {{1, 1}, {3, 0}}};
  const std::string html = draw(chart);
  // The axis goes from 0 to 4.24; 1 is at 764.2, 4 at 56.6. A bar of no height is left out.
  EXPECT_THAT(html, HasSubstr("fill c1\" d=\"M0 1000V764.2H500V1000zM500 1000V764.2H1000V1000z\""));
  EXPECT_THAT(html, HasSubstr("fill c2\" d=\"M0 764.2V56.6H500V764.2z\""));
  EXPECT_THAT(html, HasSubstr("forward</li>"));
}

TEST(StackedChartTest, ManyStepsShareBars) {
  StackedChart chart{.id = "t", .title = "Seconds", .names = {"forward"}, .values = {{}}};
  for (int step = 1; step <= 1000; ++step) {
    chart.steps.push_back(step);
    chart.values[0].push_back(step == 500 ? NAN : 1);
  }
  EXPECT_EQ(count_of(draw(chart), "z"), 160U);
}

TEST(BarTest, PartsAreSharesOfTheWhole) {
  EXPECT_EQ(draw_bar({"a", "b", "c"}, {1, 0, 2}, 4, Unit::seconds),
            "<div class=\"bar\"><span class=\"c1\" style=\"width:25%\" title=\"a: 1.00 s\"></span>"
            "<span class=\"c3\" style=\"width:50%\" title=\"c: 2.00 s\"></span></div>");
  EXPECT_EQ(draw_bar({"a"}, {0}, 0, Unit::seconds), "<div class=\"bar\"></div>");
}

}  // namespace
}  // namespace fsdp::report
