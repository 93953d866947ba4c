// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/state_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/interchange/sample.h"

namespace bulkhead::interchange {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::vector<TensorTable>& tables) {
    return std::string(joinTables(tables, "/c").status().message());
}

TensorTable tableOf(TensorPart part) {
    TensorTable table;
    table.stateBytes = 4096;
    table.tensors = {std::move(part)};
    return table;
}

TensorPart boxed(std::vector<uint64_t> begin, std::vector<uint64_t> extent, bool flat = false) {
    TensorPart one = part("w", "U8", {4, 4}, 0);
    one.box = TensorPart::Box{flat, std::move(begin), std::move(extent)};
    return one;
}

TEST(StatePlan, partsOfAllShapesMakeTheirTensor) {
    const std::vector<TensorTable> tables = {sampleTable(0), sampleTable(1)};
    const auto plan = joinTables(tables, "/c");
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const StateTensor& tensor : plan->tensors) {
        EXPECT_EQ(tensor.copies, tensor.name == "bias" || tensor.isNumber()) << tensor.name;
        EXPECT_EQ(tensor.pieces.size(), 2u) << tensor.name;
    }
    const StateTensor& columns = plan->tensors[1];
    std::vector<int16_t> whole(12, -1);
    std::vector<std::byte> back(16);
    for (const StateTensor::Piece& piece : columns.pieces) {
        const auto state = sampleState(piece.shard);
        const auto from = std::span(state).subspan(piece.offset, columns.bytesOf(piece));
        takeFromPiece(columns, piece, from, std::as_writable_bytes(std::span(whole)));
        const auto to = std::span(back).first(columns.bytesOf(piece));
        putIntoPiece(columns, piece, std::as_bytes(std::span(whole)), to);
        EXPECT_TRUE(std::ranges::equal(to, from)) << "the way back, shard " << piece.shard;
    }
    EXPECT_EQ(whole, (std::vector<int16_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(StatePlan, partsThatDoNotMakeATensorAreRefusedByName) {
    const TensorPart top = boxed({0, 0}, {2, 4}), bottom = boxed({2, 0}, {2, 4});
    EXPECT_EQ(refusal({tableOf(top), tableOf(bottom)}), "");
    EXPECT_EQ(refusal({tableOf(top), tableOf(bottom), tableOf(bottom)}), "") << "the same twice";
    EXPECT_THAT(refusal({tableOf(top)}), HasSubstr("/c: w has parts of 8 bytes, expected its 16"));
    EXPECT_THAT(refusal({tableOf(top), tableOf(boxed({1, 0}, {2, 4}))}),
                HasSubstr("w has parts that overlap"));
    EXPECT_THAT(refusal({tableOf(top), tableOf(boxed({8}, {8}, true))}),
                HasSubstr("w is cut in two ways"));
    EXPECT_THAT(refusal({tableOf(top), tableOf(part("w", "U8", {4, 4}, 0))}),
                HasSubstr("w is another tensor in shard 1"));
    EXPECT_THAT(refusal({tableOf(part("w", "U8", {4, 4}, 0)), tableOf(part("w", "I8", {4, 4}, 0))}),
                HasSubstr("w is another tensor in shard 1"));
}

TEST(StatePlan, aLayoutThatNobodyKnowsIsRefusedByNameUnlessAShardIsTakenAlone) {
    TensorPart odd = part("w", "U8", {2, 4}, 0);
    odd.unknownLayout = "(_StridedShard(dim=0),)";
    EXPECT_THAT(refusal({tableOf(odd), tableOf(odd)}),
                HasSubstr("/c: w lies on its 2 ranks as (_StridedShard(dim=0),)"));
    EXPECT_THAT(refusal({tableOf(odd), tableOf(odd)}), HasSubstr("; --shard N"));
    EXPECT_EQ(refusal({asAlone(tableOf(odd))}), "");
    EXPECT_THAT(refusal({tableOf(part("w", "U8", {3}, 0)), tableOf(part("w", "U8", {4}, 0))}),
                HasSubstr("w has shape [4] in shard 1 and [3] in shard 0"));
    const auto alone = joinTables({asAlone(sampleTable(1))}, "/c");
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(alone->tensors[0].shape, (std::vector<uint64_t>{1, 2}));
    EXPECT_EQ(alone->tensors[2].shape, (std::vector<uint64_t>{3})) << "elements of a cut row";
}

std::string tableRefusal(const std::string& text) {
    return std::string(runtime::parseTensorTable("/t", text).status().message());
}

TEST(TensorTable, comesBackAsItWasWritten) {
    const std::string text = runtime::tensorTableText(sampleTable(1));
    const auto table = runtime::parseTensorTable("/t", text);
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_EQ(runtime::tensorTableText(*table), text);
    EXPECT_EQ(table->tensors[5].path, sampleTable(1).tensors[5].path);
}

TEST(TensorTable, aHostileOneIsRefusedByTensorAndField) {
    const auto with = [](const std::string& tensors, const std::string& more = "") {
        return R"({"version":1,"state_bytes":64,"tensors":[)" + tensors + "]" + more + "}";
    };
    const std::string good =
        R"({"name":"w","kind":"parameter","dtype":"F32","shape":[2],"offset":0})";
    EXPECT_EQ(tableRefusal(with(good)), "");
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        return with(text.replace(text.find(from), from.size(), to));
    };
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"", "not JSON"},
        {"[]", "no tensor table"},
        {R"({"version":2,"state_bytes":0,"tensors":[]})", "its version is 2, this program reads 1"},
        {std::string(100'000, '['), "nested too deep"},
        {with(good + "," + good), "w: it is there twice"},
        {changed("parameter", "thing"), "w: kind \"thing\""},
        {changed("F32", "F31"), "w: dtype \"F31\" is not known"},
        {changed("F32", "NUMBER"), "w: a number has dtype NUMBER"},
        {changed("[2]", "[-2]"), "w: shape: expected counts"},
        {changed("[2]", "2"), "w: shape: expected a list"},
        {changed("[2]", "[9223372036854775807,9]"), "w: shape: more bytes"},
        {changed("\"offset\":0", "\"offset\":-1"), "w: offset: expected a count"},
        {changed("\"offset\":0", "\"offset\":57"),
         "w: offset 57 and 8 bytes, expected to end within the 64"},
        {changed("\"offset\":0", "\"offset\":18446744073709551615"),
         "expected to end within the 64"},
        {changed("\"offset\":0", R"("offset":0,"begin":[1],"extent":[2])"),
         "w: begin and extent: outside"},
        {changed("\"offset\":0", R"("offset":0,"begin":[0,0],"extent":[1,1])"),
         "expected 1 dimensions"},
        {changed("\"offset\":0", R"("offset":0,"path":[-1])"), "path: expected names and indices"},
        {changed("\"offset\":0", R"("offset":0,"path":[])"), "path: expected 1 to 64 words"},
        {with(good + R"(,{"name":"v","kind":"buffer","dtype":"U8","shape":[],"offset":7})"),
         "v: lies over w"},
        {with(good, R"(,"aliases":[{"name":"v","of":"u"}])"), "v: there is no tensor u"},
        {with(good, R"(,"aliases":[{"name":"w","of":"w"}])"), "w: it is there twice"},
    };
    for (const auto& [text, words] : cases)
        EXPECT_THAT(tableRefusal(text), HasSubstr(words)) << text.substr(0, 200);
}

}  // namespace
}  // namespace bulkhead::interchange
