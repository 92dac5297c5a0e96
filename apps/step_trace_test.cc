#include "step_trace.h"

#include <gtest/gtest.h>

namespace moesaic::app {
namespace {

using Json = nlohmann::ordered_json;

OpSpan span(const char* op, int layer, double begin, double seconds, double bytes, double flops) {
  return {.op = op, .layer = layer, .begin = begin, .seconds = seconds, .bytes = bytes, .flops = flops};
}

StepTrace a_trace() {
  StepTrace t{.model = "m",
              .caps = {},
              .rows = 1,
              .depth = 7,
              .steps = 3,
              .ceiling_gb_s = 100,
              .spans = {},
              .ops = {}};
  t.caps.name = "cpu", t.caps.peak_flops = 1e12, t.caps.experts_flops = 4e12;
  return t;
}

TEST(StepTrace, CountsFromTheFirstOperation) {
  StepTrace t = a_trace();
  t.spans = {span("embed", -1, 5000, 1e-3, 0, 0), span("qkv", 0, 5000.002, 3e-3, 0, 0)};
  const Json events = trace_json(t)["traceEvents"];
  ASSERT_EQ(events.size(), 4u);  // and the names of a process and a thread
  EXPECT_NEAR(events[2]["ts"].get<double>(), 0, 1e-3);
  EXPECT_NEAR(events[2]["dur"].get<double>(), 1000, 1e-3);
  EXPECT_NEAR(events[3]["ts"].get<double>(), 2000, 1e-2);
  EXPECT_FALSE(events[2]["args"].contains("layer"));
  EXPECT_EQ(events[3]["args"]["layer"], 0);
}

TEST(StepTrace, SharesAreOfWhatBytesOrOperationsNeed) {
  StepTrace t = a_trace();
  // 1e8 bytes need 1 ms; 4e9 operations 4 ms, of experts 1 ms.
  t.spans = {span("qkv", 0, 0, 2e-3, 1e8, 0), span("project", 0, 0, 8e-3, 1e8, 4e9),
             span("moe", 0, 0, 4e-3, 0, 4e9), span("attend", 0, 0, 0, 0, 0)};
  const Json events = trace_json(t)["traceEvents"];
  EXPECT_NEAR(events[2]["args"]["roofline_share"].get<double>(), 0.5, 1e-9);
  EXPECT_NEAR(events[2]["args"]["gb_s"].get<double>(), 50, 1e-6);
  EXPECT_NEAR(events[3]["args"]["roofline_us"].get<double>(), 4000, 1e-6);
  EXPECT_NEAR(events[3]["args"]["roofline_share"].get<double>(), 0.5, 1e-9);
  EXPECT_NEAR(events[4]["args"]["roofline_share"].get<double>(), 0.25, 1e-9);
  EXPECT_FALSE(events[5]["args"].contains("roofline_share"));  // shorter than the clock sees
  t.ceiling_gb_s = 0;
  EXPECT_FALSE(trace_json(t)["traceEvents"][2]["args"].contains("roofline_share"));
}

TEST(StepTrace, RanksAreThreads) {
  StepTrace t = a_trace();
  t.spans = {span("qkv", 0, 2, 1, 0, 0), span("qkv", 0, 1, 1, 0, 0)};
  t.spans[1].rank = 1;
  const Json events = trace_json(t)["traceEvents"];
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[2]["args"]["name"], "rank 1");
  EXPECT_EQ(events[2]["tid"], events[4]["tid"]);
  EXPECT_NE(events[1]["tid"], events[2]["tid"]);
  EXPECT_NEAR(events[3]["ts"].get<double>(), 1e6, 1e-3);  // the other rank began before
  EXPECT_NEAR(events[4]["ts"].get<double>(), 0, 1e-3);
}

TEST(StepTrace, KernelsAreNamed) {
  StepTrace t = a_trace();
  t.spans = {span("qkv", 0, 0, 1, 0, 0), span("moe", 0, 1, 1, 0, 0)};
  t.ops = {{.op = "qkv", .kernels = {"one", "two"}}, {.op = "moe"}};
  const Json events = trace_json(t)["traceEvents"];
  EXPECT_EQ(events[2]["args"]["kernels"], Json({"one", "two"}));
  EXPECT_FALSE(events[3]["args"].contains("kernels"));
}

TEST(StepTrace, TheMedianStepIsShown) {
  const auto step = [](double begin, double seconds) {
    return std::vector{span("embed", -1, begin, 1, 0, 0), span("qkv", 0, begin + 1, seconds - 1, 0, 0)};
  };
  EXPECT_DOUBLE_EQ(seconds_of(step(40, 3)), 3);
  EXPECT_DOUBLE_EQ(seconds_of(median_step({step(100, 9), step(0, 2), step(50, 4)})), 4);
  EXPECT_DOUBLE_EQ(seconds_of(median_step({step(7, 2)})), 2);
}

}  // namespace
}  // namespace moesaic::app
