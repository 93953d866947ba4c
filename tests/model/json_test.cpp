// SPDX-License-Identifier: Apache-2.0
#include "backend/model/event_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <limits>

#include "backend/model/event.h"

namespace bulkhead::model {
namespace {

using testing::HasSubstr;

std::string errorOf(std::string_view text, UnknownKeys unknown = UnknownKeys::kRefuse) {
    const auto event = fromJsonText<Event>(text, unknown);
    return event.ok() ? "" : std::string(event.status().message());
}

TEST(Json, writesAVariantAsItsAlternativeWithAType) {
    Event event;
    event.seq = 3;
    event.body = JobPhaseChanged{JobPhase::kWaiting, "waiting for r3"};
    const Json json = toJson(event);
    EXPECT_EQ(json["body"]["type"], "job_phase_changed");
    EXPECT_EQ(json["body"]["phase"], "waiting");
    EXPECT_EQ(json["severity"], "info");
}

TEST(Json, leavesOutWhatIsAbsent) {
    RankSample sample;
    sample.cpuPercent = 12.5;
    const Json json = toJson(sample);
    EXPECT_TRUE(json.contains("cpu_percent"));
    EXPECT_FALSE(json.contains("gpu_percent"));
}

TEST(Json, carriesDoublesThatAreNotFinite) {
    StepCommitted step;
    step.loss = std::numeric_limits<double>::quiet_NaN();
    step.gradNorm = -std::numeric_limits<double>::infinity();
    const auto back = fromJsonText<StepCommitted>(toJsonText(step));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(std::isnan(back->loss));
    EXPECT_EQ(back->gradNorm, step.gradNorm);
}

TEST(Json, carriesLargeIntegersExactly) {
    ShardLedger line;
    line.hash = std::numeric_limits<uint64_t>::max() - 1;
    EXPECT_EQ(fromJsonText<ShardLedger>(toJsonText(line))->hash, line.hash);
}

TEST(Json, replacesBytesThatAreNotUtf8) {
    RankOutput output;
    output.line = "ok \xff\xfe";
    const std::string text = toJsonText(output);
    EXPECT_TRUE(Json::accept(text));
    EXPECT_THAT(text, HasSubstr("ok \xEF\xBF\xBD"));
}

TEST(Json, errorsNamePathExpectationAndFinding) {
    EXPECT_EQ(errorOf(R"({"body":{"type":"step_committed","record":{"contributors":[{},)"
                      R"({"replica":"two"}]}}})"),
              "body.record.contributors[1].replica: expected a 32-bit integer, found the string "
              "\"two\"");
    EXPECT_EQ(errorOf(R"({"seq":-1})"), "seq: expected a 64-bit integer of 0 or more, found -1");
    EXPECT_EQ(errorOf(R"({"seq":1.5})"), "seq: expected a 64-bit integer of 0 or more, found 1.5");
    EXPECT_EQ(errorOf(R"({"body":{"type":"rank_started","pid":4294967296}})"),
              "body.pid: expected a 32-bit integer, found 4294967296");
    EXPECT_EQ(errorOf("[]"), "the value: expected an object, found an array");
    EXPECT_THAT(errorOf(R"({"severity":"loud"})"), HasSubstr("severity: unknown value \"loud\""));
}

TEST(Json, hintsAtTheNameThatWasMeant) {
    EXPECT_THAT(errorOf(R"({"body":{"type":"step_comitted"}})"),
                HasSubstr("did you mean \"step_committed\"?"));
    EXPECT_THAT(errorOf(R"({"sequence":1,"sevrity":"info"})"), HasSubstr("unknown key"));
}

TEST(Json, passesOverUnknownKeysOfANewerWriterButNotOfAPerson) {
    const char* text = R"({"seq":4,"colour":"red","body":{"type":"fault_ended","mood":1}})";
    EXPECT_EQ(errorOf(text, UnknownKeys::kIgnore), "");
    EXPECT_THAT(errorOf(text, UnknownKeys::kRefuse), HasSubstr("unknown key \"mood\""));
}

TEST(Json, refusesAKeyThatStandsTwiceInOneObject) {
    EXPECT_EQ(errorOf(R"({"seq":1,"body":{"type":"run_finished","ok":true},"severity":"info"})"),
              "");
    EXPECT_THAT(errorOf(R"({"seq":1,"severity":"info","seq":2})"),
                HasSubstr("the key \"seq\" is there twice"));
    EXPECT_THAT(errorOf(R"({"body":{"type":"run_finished","ok":true,"ok":false}})"),
                HasSubstr("\"ok\" is there twice"));
    EXPECT_TRUE(parseJson(R"([{"a":{"b":1}},{"a":{"b":1},"b":2}])").ok());
}

TEST(Json, readsManyObjectsInTimeThatGrowsAsTheirNumber) {
    const auto seconds = [](size_t objects) {
        std::string text = "[{\"a\":1}";
        for (size_t i = 1; i < objects; ++i) text += ",{\"a\":1}";
        const std::clock_t begin = std::clock();
        EXPECT_EQ(parseJson(text + "]")->size(), objects);
        return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    };
    const double few = seconds(10'000);
    EXPECT_LT(seconds(100'000), 40 * few + 0.1);  // a hundred times as long if it were quadratic
}

TEST(Json, refusesHostileText) {
    for (const std::string& text :
         {std::string(), std::string("{"), std::string("nul"), std::string("{\"seq\":1e999}"),
          std::string(100'000, '['), std::string("\"\\ud800\""), std::string("\0", 1),
          std::string(R"({"body":{"type":5}})"), std::string(R"({"body":null})"),
          std::string(R"({"body":{}})"), std::string(R"({"time_ns":99999999999999999999})")})
        EXPECT_NE(errorOf(text, UnknownKeys::kIgnore), "") << text.substr(0, 40);
}

}  // namespace
}  // namespace bulkhead::model
