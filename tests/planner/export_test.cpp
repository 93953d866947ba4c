// SPDX-License-Identifier: Apache-2.0
// Plans as engines' files, read back by readers of the engines' documented forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "backend/planner/data/routing_view.h"
#include "backend/planner/export/engine_files.h"
#include "backend/planner/export/recording_lines.h"
#include "backend/planner/import/json_fields.h"
#include "backend/planner/import/json_lines.h"
#include "tests/planner/samples.h"

namespace bulkhead::planner {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// 2 MoE layers (the model's 1 and 3) of 4 experts in 6 slots on 2 hosts of 1 GPU.
Plan plan() {
    Plan out;
    out.shape.layers = 2;
    out.shape.experts = 4;
    out.shape.topK = 2;
    out.shape.layerNumbers = {1, 3};
    out.topology = flatTopology(2, 1);
    out.firstSlot = {0, 3, 6};
    out.layers = {{{2, 0, 1, 3, 0, 2}, {}}, {{3, 2, 1, 0, 3, 1}, {}}};
    return out;
}

TEST(Export, sglangGetsExactlyOneKeyAndARowForEveryDecoderLayer) {
    const auto file = sglangLocation(plan(), 5);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto json = parseJsonFile(file->text, "x");
    ASSERT_TRUE(json.ok());
    EXPECT_EQ(json->size(), 1u);
    const auto back = readSglangLocation(file->text, "x");
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(back->expertOfSlot.size(), 5u);
    EXPECT_THAT(back->expertOfSlot[0], ElementsAre(0u, 1u, 2u, 3u, 0u, 1u)) << "dense";
    EXPECT_EQ(back->expertOfSlot[1], plan().layers[0].expertOfSlot);
    EXPECT_EQ(back->expertOfSlot[3], plan().layers[1].expertOfSlot);
    EXPECT_THAT(file->notes,
                Contains("Start SGLang with --ep-size 2 --ep-num-redundant-experts 2."));
    EXPECT_EQ(readSglangLocation(sglangLocation(plan())->text, "x")->expertOfSlot.size(), 4u);
    EXPECT_FALSE(sglangLocation(plan(), 3).ok()) << "layer 3 routes";
}

TEST(Export, aPlanWhoseLayersCannotBeNumberedLeavesAsNothing) {
    Plan bad = plan();
    for (const std::vector<uint32_t>& numbers :
         {std::vector<uint32_t>{1}, {4'000'000'000, 1}, {1, 1}}) {
        bad.shape.layerNumbers = numbers;
        for (const Engine engine : {Engine::kSglang, Engine::kTrtllm, Engine::kAscend})
            EXPECT_THAT(engineFile(bad, engine, 0).status().message(),
                        HasSubstr("shape.layer_numbers: "));
    }
    EXPECT_THAT(sglangLocation(plan(), 4'000'000'000).status().message(),
                HasSubstr("4000000000 decoder layers of 6 slots; at most 10000 layers"));
}

TEST(Export, countsKeepWhatTheySayOfTheModel) {
    const auto first = readJsonLines(samples::headedCountLines(), "a", {});
    ASSERT_TRUE(first.ok()) << first.status();
    std::ostringstream lines;
    ASSERT_TRUE(writeLines(*first, lines).ok());
    const auto again = readJsonLines(lines.str(), "b", {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->shape, first->shape);
    EXPECT_EQ(again->windows[1].counts, first->windows[1].counts);
}

TEST(Export, trtllmGetsTheModelsOwnLayerNumbers) {
    const auto file = trtllmBalancer(plan());
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(file->text, HasSubstr("num_slots: 6\nlayer_updates_per_iter: 0\n"));
    const auto back = readTrtllmBalancer(file->text, "x");
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_THAT(back->layerNumbers, ElementsAre(1u, 3u));
    EXPECT_EQ(back->expertOfSlot[1], plan().layers[1].expertOfSlot);
    // PyYAML writes the same in block style by default.
    const auto block = readTrtllmBalancer(
        "initial_global_assignments:\n  3:\n  - 0\n  - 1\n  - 0\nlayer_updates_per_iter: 0\n"
        "num_slots: 3\n",
        "x");
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_THAT(block->expertOfSlot, ElementsAre(ElementsAre(0u, 1u, 0u)));
}

TEST(Export, ascendGetsDevicesWithTheirExperts) {
    const auto file = ascendMap(plan());
    ASSERT_TRUE(file.ok()) << file.status();
    const auto back = readAscendMap(file->text, "x");
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->devices, 2u);
    EXPECT_THAT(back->layerNumbers, ElementsAre(0u, 1u)) << "counted over MoE layers";
    EXPECT_EQ(back->expertOfSlot[0], plan().layers[0].expertOfSlot);
    ASSERT_EQ(file->notes.size(), 1u);
    EXPECT_THAT(file->notes[0], HasSubstr("made for a token-aware router; ascend chooses replicas "
                                          "home-first: plan again with --router home-first"));
    EXPECT_EQ(routerOf(Engine::kVllm), Router::kUniform);
}

TEST(Export, whatAnEngineCannotSayIsRefusedOrNoted) {
    Plan twice = plan();
    twice.layers[1].expertOfSlot = {3, 3, 2, 1, 0, 1};
    EXPECT_THAT(ascendMap(twice).status().message(),
                HasSubstr("layer 1: GPU 0 holds an expert twice"));
    Plan uneven = plan();
    uneven.firstSlot = {0, 2, 6};
    EXPECT_THAT(sglangLocation(uneven).status().message(), HasSubstr("GPU 1 holds 4 slots"));
    Plan dropped = plan();
    dropped.layers[0].expertOfSlot[3] = 0;
    EXPECT_FALSE(trtllmBalancer(dropped).ok());
    Plan homes = plan();
    homes.homes.push_back({"code", {1, 0}});
    EXPECT_THAT(sglangLocation(homes)->notes, Contains(HasSubstr("homes of domains")));
    Plan unnumbered = plan();
    unnumbered.shape.layerNumbers.clear();
    EXPECT_THAT(trtllmBalancer(unnumbered)->notes, Contains(HasSubstr("numbered from 0")));
}

TEST(Export, aWrongEngineFileIsRefusedByPlace) {
    const auto sglang = [](std::string_view text) {
        return std::string(readSglangLocation(text, "f").status().message());
    };
    EXPECT_THAT(sglang(R"({"physical_to_logical_map":[[0]],"note":1})"), HasSubstr("nothing else"));
    EXPECT_THAT(sglang(R"({"physical_to_logical_map":[[0,1],[0]]})"),
                HasSubstr("layer 1: 1 slots, the first has 2"));
    EXPECT_THAT(sglang(R"({"physical_to_logical_map":[[0,-1]]})"),
                HasSubstr("f: physical_to_logical_map[0][1]: expected a whole number"));
    const auto trtllm = [](std::string_view text) {
        return std::string(readTrtllmBalancer(text, "f").status().message());
    };
    EXPECT_THAT(trtllm("num_slots: 2\ninitial_global_assignments:\n  3: [0, 1, 2]\n"),
                HasSubstr("num_slots is 2, layer 3 has 3 slots"));
    EXPECT_THAT(trtllm("num_slots: 2\nmore: 1\n"), HasSubstr("f:2: expected num_slots"));
    EXPECT_THAT(trtllm("num_slots: 1\ninitial_global_assignments:\n  3: [0]\n  3: [0]\n"),
                HasSubstr("f:4: expected a layer's number, once"));
    const auto ascend = [](std::string_view text) {
        return std::string(readAscendMap(text, "f").status().message());
    };
    EXPECT_THAT(ascend(R"({"moe_layer_count":2,"layer_list":[]})"),
                HasSubstr("layer_list: expected 2 layers, found an array of 0"));
    EXPECT_THAT(ascend(R"({"moe_layer_count":1,"layer_list":[{"layer_id":0,"device_count":2,
                    "device_list":[{"device_id":0,"device_expert":[0,1]},
                                   {"device_id":1,"device_expert":[2]}]}]})"),
                HasSubstr("device_list[1]: expected as many experts"));
}

TEST(Export, recordingsComeBackAsTheyWere) {
    for (const std::string& lines : {samples::requestLines(), samples::countLines()}) {
        const auto first = readJsonLines(lines, "a", {});
        ASSERT_TRUE(first.ok()) << first.status();
        std::stringstream text;
        ASSERT_TRUE(writeLines(*first, text).ok());
        const auto second = readJsonLines(text.str(), "b", {});
        ASSERT_TRUE(second.ok()) << second.status();
        EXPECT_EQ(second->shape, first->shape);
        EXPECT_EQ(totalCounts(*second), totalCounts(*first));
        ASSERT_EQ(second->windows.size(), first->windows.size());
        for (size_t i = 0; i < first->windows.size(); ++i) {
            EXPECT_EQ(second->windows[i].label, first->windows[i].label);
            EXPECT_EQ(second->windows[i].domain, first->windows[i].domain);
            EXPECT_EQ(second->windows[i].phase, first->windows[i].phase);
        }
        if (first->routing) {
            EXPECT_EQ(second->routing->requests(), first->routing->requests());
        }
    }
    std::stringstream text;
    EXPECT_EQ(writeLines(Recording(), text).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace bulkhead::planner
