// SPDX-License-Identifier: Apache-2.0
// npy arrays: every number kind and both orders are read; what is cut, lies or is foreign is
// refused.
#include "backend/planner/import/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/planner/memory_files.h"

namespace bulkhead::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> all(const Tensor& tensor) {
    std::vector<int64_t> out(tensor.size());
    tensor.integers(0, out);
    return out;
}

template <class T>
void readsBack(std::string_view descr) {
    const std::string file = npyFile(descr, "(2, 3)", bytesOf<T>({1, 2, 3, 4, 5, 100}));
    const auto tensor = parseNpy(file, "a.npy");
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_THAT(tensor->shape(), ElementsAre(2u, 3u));
    EXPECT_THAT(all(*tensor), ElementsAre(1, 2, 3, 4, 5, 100));
    EXPECT_THAT(all((*tensor)[1]), ElementsAre(4, 5, 100));
}

TEST(Npy, everyKindOfWholeNumber) {
    readsBack<uint8_t>("|u1");
    readsBack<int8_t>("|i1");
    readsBack<uint16_t>("<u2");
    readsBack<int16_t>("<i2");
    readsBack<uint32_t>("<u4");
    readsBack<int32_t>("<i4");
    readsBack<uint64_t>("<u8");
    readsBack<int64_t>("<i8");
}

TEST(Npy, fortranOrderIsReadInRowOrder) {
    const std::string file = npyFile("|u1", "(2, 3)", std::string("\1\2\3\4\5\6"), "True");
    const auto tensor = parseNpy(file, "a.npy");
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_THAT(all(*tensor), ElementsAre(1, 3, 5, 2, 4, 6));
}

TEST(Npy, unsignedNumbersAboveTheSignedOnesDoNotTurnNegative) {
    const std::string file = npyFile("<u8", "(1,)", bytesOf<uint64_t>({UINT64_MAX}));
    const auto tensor = parseNpy(file, "a.npy");
    ASSERT_TRUE(tensor.ok());
    EXPECT_THAT(all(*tensor), ElementsAre(INT64_MAX));
}

TEST(Npy, aCutFileIsRefusedAtEveryLength) {
    const std::string file = npyFile("<i4", "(2, 2)", bytesOf<int32_t>({1, 2, 3, 4}));
    ASSERT_TRUE(parseNpy(file, "a.npy").ok());
    for (size_t length = 0; length < file.size(); ++length) {
        const auto tensor = parseNpy(std::string_view(file).substr(0, length), "a.npy");
        EXPECT_EQ(tensor.status().code(), absl::StatusCode::kInvalidArgument) << length;
        EXPECT_THAT(tensor.status().message(), HasSubstr("a.npy: byte ")) << length;
    }
}

TEST(Npy, whatIsForeignOrLiesIsRefusedByPlace) {
    const auto refusal = [](std::string_view descr, std::string_view shape) {
        return std::string(parseNpy(npyFile(descr, shape, "1234"), "a.npy").status().message());
    };
    EXPECT_THAT(refusal("|O", "(4,)"), HasSubstr("expected a little-endian number type"));
    EXPECT_THAT(refusal(">i4", "(1,)"), HasSubstr("little-endian"));
    EXPECT_THAT(refusal("|u1", "(5,)"), HasSubstr("does not fit into the 4 bytes"));
    EXPECT_THAT(refusal("|u1", "(3,)"), HasSubstr("has 3 bytes, found 4"));
    EXPECT_THAT(refusal("|u1", "(4294967296, 4294967296)"), HasSubstr("does not fit"));
    EXPECT_THAT(refusal("|u1", "(18446744073709551615, 2)"), HasSubstr("does not fit"));
    EXPECT_THAT(refusal("|u1", "(1,1,1,1,1,1,1,1,4)"), HasSubstr("at most 8 lengths"));
    EXPECT_THAT(refusal("|u1", "(-4,)"), HasSubstr("a whole number of 0 or more"));
    EXPECT_THAT(refusal("|u1", "(4,), 'shape': (4,)"), HasSubstr("one shape"));
    EXPECT_THAT(refusal("|u1", "(4,), 'more': 1"), HasSubstr("only descr"));
}

}  // namespace
}  // namespace bulkhead::planner
