// SPDX-License-Identifier: Apache-2.0
// The catalogue's models have the parameters that were published, and wrong catalogues are refused.
#include "backend/planner/catalogue/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "backend/planner/catalogue/parameters.h"
#include "tests/planner/shared_data.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

std::vector<ModelSpec> builtIn() {
    const auto models = parseCatalogue(builtInCatalogue(), "catalogue.toml");
    EXPECT_TRUE(models.ok()) << models.status();
    return models.value_or(std::vector<ModelSpec>{});
}

/// Rounded to a thousandth of a billion, as models.csv has it.
double billions(uint64_t parameters) {
    return std::round(static_cast<double>(parameters) / 1e6) / 1e3;
}

TEST(Catalogue, parametersAreThePublishedOnes) {
    // Total and active, in billions, as published or as computed from the public configurations.
    const std::map<std::string, std::pair<double, double>> published = {
        {"Llama-2-7B", {6.738, 6.738}},        {"Llama-2-13B", {13.016, 13.016}},
        {"Llama-2-70B", {68.977, 68.977}},     {"Llama-3-8B", {8.030, 8.030}},
        {"Llama-3-70B", {70.554, 70.554}},     {"Llama-3.1-405B", {405.853, 405.853}},
        {"Llama-4-Scout", {107.770, 17.173}},  {"Llama-4-Maverick", {400.712, 17.185}},
        {"DeepSeek-V3", {671.026, 37.552}},    {"Qwen3-235B-A22B", {235.094, 22.191}},
        {"DeepSeek-V2-Lite", {15.706, 2.661}}, {"gpt-oss-20b", {20.915, 4.187}}};
    for (const ModelSpec& model : builtIn()) {
        const auto found = published.find(model.name);
        ASSERT_NE(found, published.end()) << model.name;
        EXPECT_DOUBLE_EQ(billions(parametersOf(model).total()), found->second.first) << model.name;
        EXPECT_DOUBLE_EQ(billions(parametersOf(model).active()), found->second.second)
            << model.name;
    }
}

TEST(Catalogue, gptOssCountsItsActiveParametersWithoutTheInputEmbedding) {
    // Its model card: 20.91 B in all, 3.61 B active, the output embedding counted, the input's not.
    const auto model = modelNamed(builtIn(), "gpt-oss-20b");
    ASSERT_TRUE(model.ok());
    const Parameters parameters = parametersOf(*model);
    EXPECT_NEAR(static_cast<double>(parameters.total()) / 1e9, 20.91, 0.01);
    EXPECT_NEAR(static_cast<double>(parameters.active() - parameters.embeddings / 2) / 1e9, 3.61,
                0.01);
}

TEST(Catalogue, everyModelOfTheReferenceTableIsInItWithTheSameFigures) {
    BULKHEAD_SHARED_DATA(csv, "models/models.csv");
    const std::vector<ModelSpec> models = builtIn();
    std::ifstream in(*csv);
    std::string line;
    std::getline(in, line);
    int rows = 0;
    for (; std::getline(in, line); ++rows) {
        std::vector<std::string> cells;
        std::stringstream row(line);
        for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
        const auto model = modelNamed(models, cells[0]);
        ASSERT_TRUE(model.ok()) << model.status();
        const auto number = [&](size_t at) {
            return cells[at].empty() ? 0 : std::stoul(cells[at]);
        };
        EXPECT_EQ(model->layers, number(1)) << line;
        EXPECT_EQ(model->hidden, number(2)) << line;
        EXPECT_EQ(model->attention.heads, number(3)) << line;
        EXPECT_EQ(model->ffn, number(6)) << line;
        EXPECT_EQ(model->moe.width, number(7)) << line;
        EXPECT_EQ(model->vocab, number(8)) << line;
        EXPECT_EQ(model->moe.experts, number(9)) << line;
        EXPECT_EQ(model->moe.topK, number(10)) << line;
        EXPECT_EQ(model->moe.shared, number(11)) << line;
        EXPECT_EQ(moeLayers(*model), number(12)) << line;
        EXPECT_DOUBLE_EQ(billions(parametersOf(*model).total()), std::stod(cells[15])) << line;
        EXPECT_DOUBLE_EQ(billions(parametersOf(*model).active()), std::stod(cells[16])) << line;
    }
    EXPECT_EQ(rows, 10);
}

TEST(Catalogue, aShapeKnowsItsBytesAndTheModelsOwnLayerNumbers) {
    const auto model = modelNamed(builtIn(), "deepseek-v3");
    ASSERT_TRUE(model.ok());
    const auto shape = shapeOf(*model);
    ASSERT_TRUE(shape.ok());
    EXPECT_EQ(shape->layers, 58u);
    EXPECT_EQ(shape->layerNumbers.front(), 3u);
    EXPECT_EQ(shape->layerNumbers.back(), 60u);
    EXPECT_EQ(shape->expertBytes, 3u * 7168 * 2048);
    EXPECT_DOUBLE_EQ(bytesPerCopy(*model), 7168 * 3);
    const auto maverick = shapeOf(*modelNamed(builtIn(), "Llama-4-Maverick"));
    EXPECT_EQ(maverick->layers, 24u);
    EXPECT_EQ(maverick->layerNumbers.back(), 47u);
}

TEST(Catalogue, whatCannotBeIsRefusedByPlace) {
    EXPECT_THAT(shapeOf(*modelNamed(builtIn(), "Llama-2-7B")).status().message(),
                HasSubstr("is dense"));
    EXPECT_THAT(modelNamed(builtIn(), "GPT-7").status().message(),
                HasSubstr("there are Llama-2-7B"));
    const auto refusal = [](std::string_view text) {
        return std::string(parseCatalogue(text, "m.toml").status().message());
    };
    EXPECT_THAT(refusal("[[models]]\nname = \"a\"\nlayer = 3\n"), HasSubstr("m.toml:3: "));
    EXPECT_THAT(refusal("[[models]]\nname = \"a\"\nlayers = -1\n"),
                HasSubstr("m.toml:3: models[0].layers"));
    EXPECT_THAT(
        refusal("[[models]]\nname = \"a\"\nlayers = 1\nhidden = 1\nattention = {heads = 1}\n"
                "moe = {experts = 4, top_k = 5}\n"),
        HasSubstr("models[0] a: moe.top_k: expected 1 to the experts"));
    EXPECT_THAT(refusal("models = 3"), HasSubstr("m.toml:1: models: expected an array"));
}

}  // namespace
}  // namespace bulkhead::planner
