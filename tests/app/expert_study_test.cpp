// SPDX-License-Identifier: GPL-3.0-only
// Figures of routing beyond loads: of a running job, and of a recording.
#include <gmock/gmock.h>

#include "app/models/expert_study.h"
#include "app/models/units.h"
#include "tests/app/support/cells.h"
#include "tests/app/support/sample_run.h"

namespace bulkhead::ui {
namespace {

using testing::HasSubstr;

/// Two domains that share no expert, one layer, tokens that use 0 with 1 or 2 with 3; what is
/// generated uses what the prompt used.
planner::Recording recording(bool withPhases) {
    planner::ModelShape shape;
    shape.layers = 1;
    shape.experts = 4;
    shape.topK = 2;
    shape.layerNumbers = {3};
    auto builder = planner::RoutingBuilder::create(shape);
    EXPECT_TRUE(builder.ok());
    for (int r = 0; r < 8; ++r) {
        const bool code = r % 2 == 0;
        builder->beginRequest("", code ? "code" : "prose");
        for (int t = 0; t < 10; ++t) {
            const std::vector<uint16_t> ids =
                code ? std::vector<uint16_t>{0, 1} : std::vector<uint16_t>{2, 3};
            EXPECT_TRUE(builder->addTokens(ids).ok());
        }
        if (withPhases) builder->setPrefillTokens(4);
    }
    auto routing = builder->finish();
    EXPECT_TRUE(routing.ok());
    planner::Recording out;
    out.shape = shape;
    out.source = "made.json";
    out.routing = *std::move(routing);
    return out;
}

TEST(ExpertStudy, ARunningJobTellsDistancesAndSaysWhatItCannotTell) {
    test::SampleRun run;
    model::RunState state;
    for (const model::Event& e : run.events(20)) model::apply(state, e);
    const ExpertStudy study = studyOf(state);
    const auto rows = distanceRows(study);
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_EQ(text(rows[0][0]), "code");
    for (size_t a = 0; a < 4; ++a) {
        EXPECT_EQ(rows[a][a + 1].text, noFigure());
        for (size_t b = 0; b < 4; ++b) {
            if (a == b) continue;
            EXPECT_EQ(rows[a][b + 1].text, rows[b][a + 1].text);
            EXPECT_GT(study.distance[a][b], 0.05);
            EXPECT_LT(study.distance[a][b], 0.9);
        }
    }
    EXPECT_TRUE(togetherRows(study).empty());
    EXPECT_THAT(togetherWords(study).toStdString(), HasSubstr("is not told there"));
    EXPECT_THAT(phaseWords(study).toStdString(), HasSubstr("training has no such phases"));
    EXPECT_TRUE(phaseRows(study, 0).empty());
}

TEST(ExpertStudy, ARecordingTellsAllOfIt) {
    const ExpertStudy study = studyOf(recording(true));
    EXPECT_NEAR(study.distance[0][1], 1, 1e-6) << "no expert in common";
    ASSERT_TRUE(study.together.has_value());
    const auto pairs = togetherRows(study);
    ASSERT_GE(pairs.size(), 2u);
    EXPECT_EQ(text(pairs[0][0]), "Layer 3");
    EXPECT_EQ(text(pairs[0][3]), "40");
    ASSERT_EQ(study.byPhase.size(), 1u);
    ASSERT_EQ(study.byPhase[0].size(), 4u);
    for (const QPointF& p : study.byPhase[0]) {
        EXPECT_DOUBLE_EQ(p.x(), 1);
        EXPECT_DOUBLE_EQ(p.y(), 1);
    }
    EXPECT_EQ(phaseRows(study, 0).size(), 4u);
    EXPECT_THAT(phaseWords(study).toStdString(), HasSubstr("between prefill and decode"));
}

TEST(ExpertStudy, WithoutPhasesTheCorrelationOfBeginningsStandsInForThem) {
    const ExpertStudy study = studyOf(recording(false));
    EXPECT_TRUE(study.byPhase.empty());
    EXPECT_THAT(phaseWords(study).toStdString(), HasSubstr("does not say where prompts end"));
}

}  // namespace
}  // namespace bulkhead::ui
