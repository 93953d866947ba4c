// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/control_frame.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/runtime/transport/control_channel.h"

namespace bulkhead::runtime {
namespace {

std::string frame(const std::string& payload) {
    return controlHeader(payload) + payload;
}

TEST(ControlFrame, ByteByByteGivesTheSameMessages) {
    const std::string stream = frame("first") + frame("") + frame(std::string(100'000, 'x'));
    ControlParser parser(kMaxFirstMessage);
    std::vector<std::string> got;
    for (char c : stream) {
        parser.append({&c, 1});
        std::optional<std::string> message;
        ASSERT_TRUE(parser.next(message).ok());
        if (message) got.push_back(*message);
    }
    ASSERT_EQ(got.size(), 3u);
    EXPECT_EQ(got[0], "first");
    EXPECT_EQ(got[1], "");
    EXPECT_EQ(got[2].size(), 100'000u);
}

TEST(ControlFrame, AFlippedBitIsDataLoss) {
    const std::string good = frame("payload");
    std::optional<std::string> message;
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
        std::string bad = good;
        bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
        ControlParser parser(kMaxFirstMessage);
        parser.append(bad);
        const absl::Status status = parser.next(message);
        EXPECT_FALSE(message.has_value()) << "bit " << bit;
        // A longer length alone only means that more is awaited.
        EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kDataLoss) << status;
    }
}

TEST(ControlFrame, AHugeLengthIsRefusedBeforeItComes) {
    std::string header = controlHeader("");
    header[8] = header[9] = header[10] = header[11] = '\xff';
    ControlParser parser(kMaxFirstMessage);
    parser.append(header);
    std::optional<std::string> message;
    EXPECT_EQ(parser.next(message).code(), absl::StatusCode::kDataLoss);
}

TEST(ControlFrame, OnlyTheFirstMessageIsKeptShort) {
    const std::string longer(kMaxFirstMessage + 1, 'x');
    std::optional<std::string> message;
    ControlParser parser(kMaxFirstMessage);
    parser.append(frame("hello"));
    ASSERT_TRUE(parser.next(message).ok());
    parser.append(frame(longer));
    ASSERT_TRUE(parser.next(message).ok());
    EXPECT_EQ(message, longer);
    ControlParser stranger(kMaxFirstMessage);
    stranger.append(frame(longer).substr(0, kControlHeaderBytes));
    EXPECT_EQ(stranger.next(message).code(), absl::StatusCode::kDataLoss);
}

TEST(ControlFrame, GarbageNeverCrashes) {
    std::mt19937_64 random(7);
    for (int round = 0; round < 2000; ++round) {
        ControlParser parser(kMaxFirstMessage);
        std::string bytes = round % 2 ? controlHeader("abc") : "";
        const size_t size = random() % 64;
        for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(random()));
        parser.append(bytes);
        std::optional<std::string> message;
        while (parser.next(message).ok() && message) {
        }
    }
}

}  // namespace
}  // namespace bulkhead::runtime
