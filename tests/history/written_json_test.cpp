// SPDX-License-Identifier: Apache-2.0
#include "backend/history/written_json.h"

#include <gtest/gtest.h>

#include <limits>

#include "backend/common/codec.h"
#include "backend/history/event_row.h"
#include "tests/rpc/random_fields.h"

namespace bulkhead::history {
namespace {

TEST(WrittenJson, everyKindOfEventIsReadAsItWasWritten) {
    for (size_t type = 0; type < std::variant_size_v<model::EventBody>; ++type)
        for (uint32_t seed = 0; seed < 20; ++seed) {
            model::Event event;
            bulkhead::testing::RandomFields random(seed);
            withAlternative<model::EventBody>(
                type, [&]<size_t I>() { random.fill(event.body.emplace<I>()); });
            std::string json = rowOf(event).json;
            const auto body = bodyAsWritten(json);
            ASSERT_TRUE(body.has_value()) << json;
            EXPECT_EQ(encode(*body), encode(event.body)) << json;
        }
}

TEST(WrittenJson, whatIsReadBeforeDoesNotStandInForWhatIsAbsent) {
    std::string full =
        R"({"ranks":[{"gpu_bytes":7,"rank":{"replica":1,"shard":2}}],"type":"fleet_sampled"})";
    std::string bare = R"({"ranks":[{"rank":{"shard":3}}],"type":"fleet_sampled"})";
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(std::get<model::FleetSampled>(*bodyAsWritten(full)).ranks[0].gpuBytes, 7u);
        const auto sample = std::get<model::FleetSampled>(*bodyAsWritten(bare)).ranks[0];
        EXPECT_EQ(sample.gpuBytes, std::nullopt);
        EXPECT_EQ(sample.rank.shard, 3);
        EXPECT_EQ(sample.rank.replica, model::RankSample{}.rank.replica);
    }
}

TEST(WrittenJson, leavesAnyOtherTextToTheCarefulReader) {
    const std::string tooDeep = std::string(2000, '[') + std::string(2000, ']');
    for (std::string other : {std::string(), std::string("{"), std::string("[]"), std::string("{}"),
                              tooDeep, std::string(R"({"type":"of_a_newer_program"})"),
                              std::string(R"({"step":1,"type":"step_committed"})"),
                              std::string(R"({"step":-1,"type":"step_redone"})"),
                              std::string(R"({"step":1.5,"type":"step_redone"})"),
                              std::string(R"({"step":18446744073709551616,"type":"step_redone"})"),
                              std::string(R"({"attempt":4294967296,"type":"step_redone"})"),
                              std::string(R"({"step":1,"step":1,"type":"step_redone"})"),
                              std::string(R"({"lost":null,"type":"step_redone"})"),
                              std::string(R"({"lost":[2147483648],"type":"step_redone"})"),
                              std::string(R"({"kind":"unheard_of","type":"evidence_seen"})"),
                              std::string("{\"why\":\"\xff\",\"type\":\"step_redone\"}")})
        EXPECT_FALSE(bodyAsWritten(other).has_value()) << other;
}

}  // namespace
}  // namespace bulkhead::history
