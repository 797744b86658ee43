// The page of runs of every kind.
#include <gmock/gmock.h>

#include <cmath>
#include <regex>

#include "app/report/report.h"

namespace fsdp::report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kStart = 1772373600;  // 2026-03-01 14:00:00 UTC

watch::StepRecord step_of(int64_t step) {
  watch::StepRecord record{.time = kStart + static_cast<double>(step), .step = step};
  record.loss = 4.0 / static_cast<double>(step);
  record.learning_rate = 1e-3;
  record.gradient_norm = 0.5;
  record.tokens = step * 1000;
  record.tokens_per_second = 2000;
  record.seconds = 0.5;
  record.times = {.data = 0.05, .forward = 0.15, .backward = 0.2, .optimizer = 0.05, .waiting = 0.05};
  record.memory_bytes = 3 << 20;
  return record;
}

// A run of `steps` steps that ended as planned.
Run run_of(int64_t steps) {
  Run run{.folder = "runs/example/stage1", .config = "training:\n  batch_size: 4\n", .now = kStart + 1000};
  watch::StartRecord start{.time = kStart, .run = run.folder, .ranks = 2, .backend = "shm", .device = "cpu"};
  start.model = "gpt2-tiny";
  start.parameters = 1234567;
  start.units = 3;
  start.steps = steps;
  start.bytes_per_rank = {{"shards", 2 << 20}, {"optimizer", 4 << 20}};
  start.config = {{"optimizer.lr", "0.001"}};
  start.versions = {{"LibTorch", "2.11.0"}};
  run.metrics.starts = {start};
  for (int64_t step = 1; step <= steps; ++step) run.metrics.steps.push_back(step_of(step));
  run.metrics.ends = {{.time = kStart + 500, .step = steps, .steps = steps, .reason = "all steps done"}};
  return run;
}

TEST(Page, HasAllSectionsOfARun) {
  report::Run run = run_of(100);
  run.metrics.evals = {{.step = 50, .loss = 0.5}, {.step = 100, .loss = 0.25}};
  run.metrics.checkpoints = {{.step = 100, .path = "step-100", .seconds = 2, .blocking_seconds = 0.1}};
  run.metrics.units = {{.step = 100, .steps = 100, .units = {{"block0", 200, 100, 4096, 1.5}}}};
  run.metrics.memory = {{.step = 100, .ranks = {{.rank = 0, .kinds = {{"shards", 2 << 20}}}}}};
  const std::string html = page(run);
  for (const char* id : {"loss", "learning-rate", "gradient-norm", "throughput", "step-memory", "step-times"})
    EXPECT_THAT(html, HasSubstr("<figure class=\"chart\" id=\"" + std::string(id) + "\">"));
  for (const char* id :
       {"curves", "times", "memory", "communication", "checkpoints", "events", "config", "environment"}) {
    EXPECT_THAT(html, HasSubstr("<section id=\"" + std::string(id) + "\">"));
    EXPECT_THAT(html, HasSubstr("<a href=\"#" + std::string(id) + "\">"));
  }
  EXPECT_THAT(html, AllOf(HasSubstr("1.23M parameters on 2 CPU ranks"), HasSubstr("Finished: all steps done"),
                          HasSubstr("Best eval loss</dt><dd>0.2500<small>at step 100"),
                          HasSubstr("Tokens per second</dt><dd>2.00k<small>median"),
                          HasSubstr("batch_size: 4"), HasSubstr("2.11.0"), HasSubstr("step-100")));
}

TEST(Page, LoadsNothingFromElsewhere) {
  const std::string html = page(run_of(100));
  const std::regex loads(R"((src|href|action|poster)\s*=\s*["']?(?!["'#])|url\(|@import|https?:|//\w+\.)");
  for (std::sregex_iterator at(html.begin(), html.end(), loads), end; at != end; ++at)
    ADD_FAILURE() << html.substr(static_cast<size_t>(at->position()), 80);
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
}

TEST(Page, TextsOfTheRunAreNeverCode) {
  const std::string attack = "</title></script><script>alert(1)</script><img src=x onerror='alert(2)' \"";
  report::Run run = run_of(3);
  run.folder = run.metrics.starts[0].run = attack;
  run.config = attack;
  watch::StartRecord& start = run.metrics.starts[0];
  start.model = start.device = start.backend = attack;
  start.config = start.versions = {{attack, attack}};
  start.bytes_per_rank = {{attack, 1 << 20}};
  run.metrics.resumes = {{.time = kStart, .step = 2, .from = attack}};
  run.metrics.events = {{{.time = kStart, .step = 1, .text = attack}, false}};
  run.metrics.checkpoints = {{.step = 1, .path = attack}};
  run.metrics.units = {{.step = 1, .steps = 1, .units = {{attack, 1, 1, 1, 1.0}}}};
  run.metrics.ends[0].reason = attack;
  run.metrics.notes = {attack};
  const std::string harmless = page(run_of(3)), html = page(run);
  const auto count = [](const std::string& text, const char* what) {
    const std::regex tag(what);
    return std::distance(std::sregex_iterator(text.begin(), text.end(), tag), {});
  };
  EXPECT_EQ(count(html, "<script"), count(harmless, "<script"));
  EXPECT_EQ(count(html, "</title>"), 1);
  EXPECT_EQ(count(html, "<img"), 0);
}

TEST(Page, AResumedRunShowsWhereAndThatStepsWereRepeated) {
  report::Run run = run_of(100);
  run.metrics.starts.push_back(run.metrics.starts[0]);
  run.metrics.starts[1].ranks = 3;
  run.metrics.resumes = {{.time = kStart + 50, .step = 50, .from = "runs/example/stage1/step-50"}};
  run.metrics.superseded_steps = 7;
  run.metrics.events = {{{.time = kStart + 49, .step = 55, .text = "rank 1 was killed"}, true}};
  EXPECT_THAT(page(run), AllOf(HasSubstr("<b class=\"resume\""), HasSubstr("started with 3 ranks"),
                               HasSubstr("resumed from runs/example/stage1/step-50"),
                               HasSubstr("7 steps were done again after a resume"),
                               HasSubstr("superseded: the run was resumed before this step")));
}

TEST(Page, EventsStandInTheOrderInWhichTheyCame) {
  report::Run run = run_of(60);
  run.metrics.events = {{{.time = kStart + 30, .step = 30, .text = "the later one"}, false},
                        {{.time = kStart + 20, .step = 20, .text = "the earlier one"}, false}};
  const std::string html = page(run);
  size_t at = 0;
  for (const char* text :
       {"started with 2 ranks", "the earlier one", "the later one", "ended: all steps done"}) {
    const size_t found = html.find(text, at);
    ASSERT_NE(found, std::string::npos) << text;
    at = found;
  }
}

TEST(Page, SkippedStepsAndLossesThatAreNotFiniteAreMarked) {
  report::Run run = run_of(100);
  run.metrics.steps[69].skipped = true;
  run.metrics.steps[69].loss = NAN;
  run.metrics.steps[69].gradient_norm = INFINITY;
  const std::string html = page(run);
  EXPECT_THAT(html, AllOf(HasSubstr("<b class=\"skipped\""), HasSubstr("title=\"step 70: train nan\""),
                          HasSubstr("title=\"step 70: Gradient norm inf\""), HasSubstr("skipped: loss nan")));
  EXPECT_EQ(html.find("\"M nan"), std::string::npos);
}

TEST(Page, ARunWhoseLossesAreAllNanHasAPage) {
  report::Run run = run_of(20);
  for (watch::StepRecord& step : run.metrics.steps) step.loss = NAN;
  EXPECT_THAT(page(run), AllOf(HasSubstr("20 not finite"), HasSubstr("Training loss</dt><dd>nan")));
}

TEST(Page, ARunOfOneStep) {
  const std::string html = page(run_of(1));
  EXPECT_THAT(html,
              AllOf(HasSubstr("id=\"loss\""), HasSubstr("id=\"step-times\""), Not(HasSubstr("d=\"M-"))));
}

TEST(Page, ARunBeforeItsFirstStep) {
  report::Run run = run_of(0);
  run.metrics.ends.clear();
  run.now = kStart + 10;
  EXPECT_THAT(page(run), AllOf(HasSubstr("No step is done yet"), HasSubstr(">Running<"),
                               Not(HasSubstr("<figure")), HasSubstr("gpt2-tiny")));
}

TEST(Page, WithoutEvaluationsThereIsNoTileAndNoLine) {
  const std::string html = page(run_of(10));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("Best eval loss")), Not(HasSubstr("evaluation</li>"))));
}

TEST(Page, OnlyEvaluationsAreDrawnToo) {
  report::Run run = run_of(0);
  run.metrics.evals = {{.step = 5, .loss = 1}, {.step = 10, .loss = 0.5}};
  EXPECT_THAT(page(run), HasSubstr("<path class=\"dots c2\""));
}

TEST(Page, TellsARunThatStoppedFromOneThatWasKilled) {
  report::Run run = run_of(10);
  run.metrics.ends[0] = {.time = kStart + 20, .step = 10, .reason = "no space", .exit_code = 6};
  EXPECT_THAT(page(run), AllOf(HasSubstr("class=\"status stopped\">Stopped: no space"),
                               HasSubstr("Exit code 6 after step 10.")));
  run.metrics.ends[0] = {.time = kStart + 20, .step = 10, .reason = "SIGTERM"};
  EXPECT_THAT(page(run), AllOf(HasSubstr(">Stopped by SIGTERM<"), HasSubstr("was saved after step 10.")));
  run.metrics.ends.clear();
  run.now = kStart + 10 + 30;
  EXPECT_THAT(page(run), HasSubstr("class=\"status running\">Running"));
  run.now = kStart + 10 + 90;
  EXPECT_THAT(page(run), AllOf(HasSubstr("Killed, or silent for 1:30 minutes"), HasSubstr("--resume auto")));
}

TEST(Page, AnEndBeforeTheLastStartDoesNotCount) {
  report::Run run = run_of(10);
  run.metrics.starts.push_back(run.metrics.starts[0]);
  run.metrics.starts[1].time = kStart + 990;
  EXPECT_THAT(page(run), HasSubstr("class=\"status running\""));
}

TEST(Page, TimesAreMeansOfAStepAndTheirShares) {
  const std::string html = page(run_of(40));
  EXPECT_THAT(html, HasSubstr("forward</td><td class=\"n\">150 ms</td><td class=\"n\">30%</td>"));
  EXPECT_THAT(html, HasSubstr("backward</td><td class=\"n\">200 ms</td><td class=\"n\">40%</td>"));
  EXPECT_THAT(html, Not(HasSubstr("</i>other</td>"))) << "the parts are the whole";
  EXPECT_THAT(html, Not(HasSubstr("</i>checkpoint</td>"))) << "none was saved";
}

TEST(Page, TrafficIsSummedOverTheRunAndSharedByItsSteps) {
  report::Run run = run_of(10);
  run.metrics.units = {{.step = 4, .steps = 4, .units = {{"a", 8, 4, 4 << 10, {}}, {"b", 8, 4, 0, {}}}},
                       {.step = 10, .steps = 6, .units = {{"a", 12, 6, 6 << 10, {}}, {"b", 12, 6, 0, {}}}}};
  const std::string html = page(run);
  EXPECT_THAT(html, HasSubstr("In 10 steps."));
  EXPECT_THAT(html, HasSubstr("<td>a</td><td class=\"n\">20</td><td class=\"n\">10</td>"
                              "<td class=\"n\">10.0 KiB</td><td class=\"n\">1.00 KiB</td>"));
  EXPECT_THAT(html, HasSubstr("<td>all units</td><td class=\"n\">40</td>"));
}

TEST(Page, ALongRunMakesAPageOfModestSize) {
  report::Run run = run_of(200000);
  const size_t bytes = page(run).size();
  EXPECT_LT(bytes, size_t{1} << 20);
  EXPECT_GT(bytes, size_t{1} << 16);
}

}  // namespace
}  // namespace fsdp::report
