// SPDX-License-Identifier: Apache-2.0
#include "backend/common/codec.h"

#include <gtest/gtest.h>

#include "backend/common/types.h"
#include "backend/model/event.h"

namespace bulkhead {
namespace {

CommitRecord someRecord() {
    CommitRecord r;
    r.step = 7;
    r.epoch = 3;
    r.contributors = {{0, 1, {{2, 10, 20}}}, {3, 4, {}}};
    r.skip = true;
    return r;
}

TEST(Codec, returnsWhatWasEncoded) {
    const CommitRecord record = someRecord();
    const absl::StatusOr<CommitRecord> back = decode<CommitRecord>(encode(record));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, record);
}

TEST(Codec, carriesVariantsAndOptionals) {
    model::Event event;
    event.seq = 9;
    model::FleetSampled fleet;
    fleet.ranks.resize(2);
    fleet.ranks[1].cpuPercent = 99.5;
    event.body = fleet;
    const auto back = decode<model::Event>(encode(event));
    ASSERT_TRUE(back.ok()) << back.status();
    const auto& ranks = std::get<model::FleetSampled>(back->body).ranks;
    EXPECT_FALSE(ranks[0].cpuPercent.has_value());
    EXPECT_EQ(ranks[1].cpuPercent, 99.5);
}

TEST(Codec, refusesEveryTruncation) {
    const std::string whole = encode(someRecord());
    for (size_t n = 0; n < whole.size(); ++n)
        EXPECT_FALSE(decode<CommitRecord>(std::string_view(whole).substr(0, n)).ok()) << n;
    EXPECT_FALSE(decode<CommitRecord>(whole + "x").ok());
}

struct Numbers {
    std::vector<uint64_t> values;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("values", self.values);
    }
};

TEST(Codec, refusesACountLargerThanTheMessage) {
    std::string bytes = encode(Numbers{{1, 2}});
    bytes[0] = bytes[1] = bytes[2] = bytes[3] = '\xff';
    EXPECT_FALSE(decode<Numbers>(bytes).ok());
}

TEST(Codec, refusesUnknownEnumsAndAlternatives) {
    model::Event event;
    std::string bytes = encode(event);
    bytes[16] = 77;  // severity
    EXPECT_FALSE(decode<model::Event>(bytes).ok());
    bytes = encode(event);
    bytes[20] = 120;  // body's index
    EXPECT_FALSE(decode<model::Event>(bytes).ok());
}

}  // namespace
}  // namespace bulkhead
