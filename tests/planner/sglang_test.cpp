// SPDX-License-Identifier: Apache-2.0
// SGLang's dumps: real ones where they are, small ones of our own, and pickles that want to be run.
#include "backend/planner/import/sglang_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "backend/planner/data/routing_view.h"
#include "backend/planner/import/import.h"
#include "backend/planner/import/torch_file.h"
#include "tests/planner/shared_data.h"
#include "tests/planner/torch_writer.h"

namespace bulkhead::planner {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Recording> importTorch(const std::string& bytes) {
    return importFile("d.pt", memoryFiles({{"d.pt", bytes}}));
}

TEST(SglangStat, unusedStepsAndDenseLayersAreLeftOut) {
    const auto recording = importTorch(statDump());
    ASSERT_TRUE(recording.ok()) << recording.status();
    ASSERT_EQ(recording->windows.size(), 2u);
    EXPECT_EQ(recording->windows[1].label, "step 1");
    EXPECT_THAT(recording->windows[1].counts.values(), ElementsAre(5u, 6u, 7u, 8u));
    EXPECT_THAT(recording->shape.layerNumbers, ElementsAre(1u, 2u));
    EXPECT_THAT(recording->notes, Contains(HasSubstr("1 of 3 steps")));
}

/// A model of `decoder` layers of which `numbers` route, for statDump's 2 experts.
ImportOptions modelOf(uint32_t decoder, std::vector<uint32_t> numbers) {
    ImportOptions options;
    options.model = ModelShape();
    options.model->name = "m";
    options.model->layers = static_cast<uint32_t>(numbers.size());
    options.model->experts = 2;
    options.model->layerNumbers = std::move(numbers);
    options.decoderLayers = decoder;
    return options;
}

TEST(SglangStat, rowsMustBeTheModelsLayersOrJustItsMoeLayers) {
    const auto import = [](const std::string& bytes, const ImportOptions& options) {
        return importFile("d.pt", memoryFiles({{"d.pt", bytes}}), options);
    };
    const auto whole = import(statDump(), modelOf(3, {1, 2}));
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_THAT(whole->shape.layerNumbers, ElementsAre(1u, 2u));
    EXPECT_EQ(import(statDump(), modelOf(4, {1, 2})).status().message(),
              "d.pt: it has 3 layers of which 2 route, the first 1; m has 4 of which 2 route, the "
              "first 1; name the model it was recorded from");
    EXPECT_THAT(import(statDump(), modelOf(3, {0, 2})).status().message(),
                HasSubstr("the first 1; m has 3 of which 2 route, the first 0"));
    PickleText pickle;
    pickle.raw("}(").text("logical_count").tensor("IntStorage", "0", {2, 2}).raw("u");
    const std::string dump = torchFile(pickle, {{"0", bytesOf<int32_t>({1, 2, 3, 4})}});
    const auto mapped = import(dump, modelOf(3, {1, 2}));
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    EXPECT_THAT(mapped->shape.layerNumbers, ElementsAre(1u, 2u));
    EXPECT_THAT(mapped->notes, Contains(HasSubstr("are as many as the MoE layers of m")));
}

TEST(SglangStat, countsThatWouldWrapAreRefused) {
    PickleText pickle;
    pickle.raw("}(").text("logical_count").tensor("LongStorage", "0", {2, 1}).raw("u");
    EXPECT_THAT(importTorch(torchFile(pickle, {{"0", bytesOf<int64_t>({1, INT64_MAX})}}))
                    .status()
                    .message(),
                HasSubstr("step 0, layer 1, expert 0: 9223372036854775807 tokens, expected 0 to"));
}

TEST(SglangPass, ranksAddUpAndReplicasFoldIntoTheirExpert) {
    const Files files =
        memoryFiles({{"a_0.pt", passDump(0, {1, 2, 3})}, {"a_1.pt", passDump(1, {10, 0, 0})}});
    const auto recording = readSglang({"a_0.pt", "a_1.pt"}, files, {});
    ASSERT_TRUE(recording.ok()) << recording.status();
    ASSERT_EQ(recording->windows.size(), 1u);
    EXPECT_THAT(recording->windows[0].counts.values(), ElementsAre(14u, 2u));
}

TEST(SglangPass, oneRankTwiceIsTwoDumps) {
    const Files files =
        memoryFiles({{"a_0.pt", passDump(0, {1, 2, 3})}, {"b_0.pt", passDump(0, {1, 2, 3})}});
    EXPECT_THAT(readSglang({"a_0.pt", "b_0.pt"}, files, {}).status().message(),
                HasSubstr("b_0.pt: rank 0 as in a_0.pt"));
}

TEST(SglangToken, piecesBecomeRequestsAndSlotsLogicalExperts) {
    const auto recording = importTorch(tokenDump());
    ASSERT_TRUE(recording.ok()) << recording.status();
    const Routing& routing = *recording->routing;
    EXPECT_EQ(routing.shape().layers, 1u);
    EXPECT_EQ(routing.shape().experts, 3u);
    EXPECT_EQ(routing.shape().topK, 2u);
    EXPECT_THAT(routing.shape().layerNumbers, ElementsAre(1u));
    ASSERT_EQ(routing.requests().size(), 3u);
    EXPECT_EQ(routing.requests()[0].tokens, 2u);
    EXPECT_EQ(routing.requests()[0].prefillTokens, 2u);
    EXPECT_EQ(routing.requests()[2].tokens, 1u) << "the second decode token is padding";
    EXPECT_EQ(routing.requests()[2].prefillTokens, 0u);
    EXPECT_EQ(routing.expert(0, 1, 0), 0) << "slot 3 is a replica of expert 0";
    EXPECT_EQ(routing.expert(0, 3, 1), 0);
}

TEST(SglangToken, ranksWithTheSameTokensCountOnce) {
    const Files files = memoryFiles({{"a_0.pt", tokenDump(0)}, {"a_1.pt", tokenDump(1)}});
    const auto recording = readSglang({"a_0.pt", "a_1.pt"}, files, {});
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_EQ(recording->routing->tokens(), 4u);
    EXPECT_THAT(recording->notes, Contains(HasSubstr("2 passes were the same on several ranks")));
}

std::string refusal(const PickleText& pickle) {
    return std::string(importTorch(torchFile(pickle, {})).status().message());
}

TEST(TorchFile, aPickleThatWantsToCallSomethingIsRefusedUnrun) {
    EXPECT_THAT(refusal(PickleText().raw("cos\nsystem\n(").text("touch /tmp/x").raw("tR")),
                HasSubstr("pickle byte 2: it asks for os.system"));
    EXPECT_THAT(refusal(PickleText().raw("cbuiltins\neval\n")), HasSubstr("builtins.eval"));
    EXPECT_THAT(refusal(PickleText().text("os").text("system").raw("\x93")),
                HasSubstr("opcode 0x93"));
    EXPECT_THAT(refusal(PickleText().raw("}b")), HasSubstr("opcode 0x62"));
    EXPECT_THAT(refusal(PickleText().raw("(ios\nsystem\n")), HasSubstr("opcode 0x69"));
}

TEST(TorchFile, aMachineWithoutWhatItNeedsRefuses) {
    for (const char* ops : {"t", "(", ")R", "Q", "]e", "u", "s", "a", "h\x01", "q\x01", "X\xff\xff",
                            "ccollections\nOrderedDict\n)R)", "\x8a\x09", "\x80\x09", "\x95"})
        EXPECT_THAT(refusal(PickleText().raw(ops)), HasSubstr("d.pt: pickle byte ")) << ops;
}

TEST(TorchFile, tensorsThatDoNotLieInTheirStorageAreRefused) {
    PickleText pickle;
    pickle.raw("}(").text("logical_count").tensor("IntStorage", "0", {2, 2}).raw("u");
    const auto with = [&](const std::map<std::string, std::string>& storages) {
        return std::string(importTorch(torchFile(pickle, storages)).status().message());
    };
    EXPECT_THAT(with({}), HasSubstr("d.pt: logical_count: its storage data/0 is not in the file"));
    EXPECT_THAT(with({{"0", std::string(12, 'x')}}), HasSubstr("should hold 4 int32, it has 12"));
    EXPECT_THAT(with({{"0", bytesOf<int32_t>({1, -1, 1, 1})}}), HasSubstr("-1 tokens"));
}

TEST(TorchFile, aCutOrChangedFileIsRefused) {
    const std::string whole = statDump();
    for (size_t length = 4; length < whole.size(); length += 7)
        EXPECT_FALSE(importTorch(whole.substr(0, length)).ok()) << length;
    std::string changed = whole;
    changed[whole.find("logical_count") + 3] ^= 1;
    EXPECT_THAT(importTorch(changed).status().message(), HasSubstr("checksum is wrong"));
}

TEST(SglangStat, theRealOne) {
    BULKHEAD_SHARED_DATA(folder, "moe/formats/sglang_stat");
    const auto recording = importRecording(*folder);
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_EQ(recording->windows.size(), 4u);
    EXPECT_EQ(recording->shape.layers, 26u);
    EXPECT_EQ(recording->windows[0].counts.total(0), 24888u);
}

TEST(SglangToken, theRealOneIsTheRoutingItWasMadeFrom) {
    BULKHEAD_SHARED_DATA(folder, "moe/formats/sglang_per_token");
    BULKHEAD_SHARED_DATA(meta, "moe/esft/meta.json");
    const auto recording = importRecording(*folder);
    ASSERT_TRUE(recording.ok()) << recording.status();
    const Routing& routing = *recording->routing;
    EXPECT_EQ(routing.tokens(), 800u);
    EXPECT_EQ(routing.shape().topK, 6u);
    ASSERT_EQ(routing.requests().size(), 8u);
    EXPECT_EQ(routing.requests()[0].prefillTokens, 100u);
    const auto original = importRecording(*meta);
    ASSERT_TRUE(original.ok());
    // Its tokens are among those of the recording it was made from.
    const auto key = [](const Routing& r, uint64_t token) {
        std::vector<uint16_t> ids;
        for (uint32_t layer = 0; layer < r.shape().layers; ++layer)
            for (uint32_t k = 0; k < r.shape().topK; ++k) ids.push_back(r.expert(layer, token, k));
        return ids;
    };
    std::set<std::vector<uint16_t>> known;
    for (uint64_t t = 0; t < original->routing->tokens(); ++t)
        known.insert(key(*original->routing, t));
    for (uint64_t t = 0; t < routing.tokens(); ++t)
        EXPECT_TRUE(known.contains(key(routing, t))) << t;
}

}  // namespace
}  // namespace bulkhead::planner
