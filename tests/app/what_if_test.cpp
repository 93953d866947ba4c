// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QTest>
#include <algorithm>
#include <set>

#include "app/models/units.h"
#include "app/models/what_if_form.h"
#include "app/models/what_if_study.h"
#include "app/session/background.h"
#include "tests/app/support/sample_run.h"

namespace bulkhead::ui {
namespace {

const model::WhatIfPreset& preset(std::string_view name) {
    for (const model::WhatIfPreset& p : model::whatIfPresets())
        if (p.name == name) return p;
    ADD_FAILURE() << "no preset " << name;
    return model::whatIfPresets()[0];
}

const Knob& knob(std::string_view key) {
    for (const Knob& k : knobs())
        if (k.parameter->key == key) return k;
    ADD_FAILURE() << "no knob " << key;
    return knobs()[0];
}

double at(const Points& curve, double gpus) {
    const auto point = std::ranges::min_element(
        curve, {}, [&](const QPointF& p) { return std::abs(p.x() - gpus); });
    return point->y();
}

TEST(WhatIfForm, EveryNumberHasAKnobWithinItsBounds) {
    std::set<std::string_view> keys;
    for (const Knob& k : knobs()) {
        keys.insert(k.parameter->key);
        ASSERT_GT(k.values.size(), 1u) << k.parameter->key;
        EXPECT_TRUE(std::ranges::is_sorted(k.values)) << k.parameter->key;
        for (const double value : k.values) {
            model::WhatIf s;
            model::setWhatIf(s, *k.parameter, value);
            EXPECT_TRUE(model::checkWhatIf(s).ok()) << model::checkWhatIf(s);
        }
    }
    for (const model::WhatIfParameter& p : model::whatIfParameters())
        EXPECT_EQ(keys.contains(p.key), p.key != "intervalS") << p.key;
}

TEST(WhatIfForm, ASliderStandsNearestToTheNumberAndItsPositionsAreRound) {
    const Knob& gpus = knob("gpusPerReplica");
    EXPECT_EQ(gpus.values[static_cast<size_t>(positionOf(gpus, 8192))], 8192);
    EXPECT_EQ(gpus.values[static_cast<size_t>(positionOf(gpus, 1e9))], gpus.values.back());
    EXPECT_EQ(positionOf(gpus, 0), 0);
    const Knob& fetch = knob("fetchGBps");
    EXPECT_EQ(fetch.values[static_cast<size_t>(positionOf(fetch, 0.11))], 0.12);
    const Knob& spares = knob("spares");
    EXPECT_EQ(spares.values[static_cast<size_t>(positionOf(spares, 2))], 2);
}

TEST(WhatIfForm, FiguresHaveUnitsAndSources) {
    EXPECT_EQ(words(*knob("restartS").parameter, 600), formatMs(600'000));
    EXPECT_EQ(words(*knob("gpusPerReplica").parameter, 8192), formatCount(8192));
    EXPECT_EQ(words(*knob("sharedShare").parameter, 0.053), formatShare(0.053));
    EXPECT_EQ(words(*knob("fetchGBps").parameter, 2.5), QStringLiteral("2.5\u202fGB/s"));
    const model::WhatIfPreset& ft = preset("published_ft");
    model::WhatIf s = ft.scenario;
    EXPECT_TRUE(sourceWords(ft, knob("restartS"), s).startsWith("arXiv 2602.00277"));
    // The rate stands for the interval that the paper gives.
    EXPECT_TRUE(sourceWords(ft, knob("failuresPer1000NodeDays"), s).contains("18 minutes"));
    s.restartS = 60;
    const QString changed = sourceWords(ft, knob("restartS"), s);
    EXPECT_TRUE(changed.startsWith("Set here.")) << qPrintable(changed);
    EXPECT_TRUE(changed.contains(formatMs(600'000))) << qPrintable(changed);
}

TEST(WhatIfForm, AKnobThatWouldChangeNothingSaysWhy) {
    model::WhatIf s = preset("published_ft").scenario;
    EXPECT_TRUE(idleWords(knob("fetchGBps"), s).contains("State per GPU"));
    const double without = studyOf(s).result.effective;
    s.fetchGBps = 0.01;
    EXPECT_EQ(studyOf(s).result.effective, without);
    s.stateGBPerGpu = 4;
    EXPECT_TRUE(idleWords(knob("fetchGBps"), s).isEmpty());
    EXPECT_LT(studyOf(s).result.effective, without);
    EXPECT_TRUE(idleWords(knob("restartS"), s).isEmpty());
}

TEST(WhatIfForm, StartingPointsDifferInMoreThanTheSpacing) {
    for (const model::WhatIfPreset* p : startingPoints())
        EXPECT_FALSE(p->name.ends_with("_exponential")) << p->name;
    EXPECT_EQ(startingPoints().size(), 5u);
}

TEST(WhatIfStudy, BothCurvesOfThePublishedNumbersPassThroughThePublishedPoints) {
    const WhatIfStudy study = studyOf(preset("published_ft").scenario);
    const auto points = publishedPoints();
    ASSERT_EQ(points.size(), 2u);
    EXPECT_EQ(points[0].at, QPointF(98304, 44));
    EXPECT_EQ(points[1].at, QPointF(98304, 80));
    EXPECT_NEAR(at(study.restartAll, 98304), 44, 2);
    EXPECT_NEAR(at(study.faultTolerant, 98304), 80, 2);
    EXPECT_EQ(at(study.faultTolerant, 98304), 100 * study.result.effective);
    for (const Points& curve : {study.faultTolerant, study.restartAll}) {
        EXPECT_TRUE(std::ranges::is_sorted(curve, {}, &QPointF::x));
        EXPECT_GT(curve.front().y(), 95);  // 4,096 GPUs fail seldom
        EXPECT_LT(curve.back().y(), at(curve, 98304));
    }
}

TEST(WhatIfStudy, ItsFiguresAreThoseOfTheCommandLine) {
    const model::WhatIf& s = preset("bulkhead_spares").scenario;
    const WhatIfStudy study = studyOf(s);
    EXPECT_EQ(study.days, 54);
    EXPECT_EQ(study.result.effective, model::simulate(s, 54, 1).effective);
}

TEST(WhatIfStudy, WhereFailuresComeThickFewerDaysAreSimulated) {
    model::WhatIf s = preset("bulkhead").scenario;
    s.gpusPerReplica = 65536;
    s.failuresPer1000NodeDays = 100;
    const WhatIfStudy study = studyOf(s);
    EXPECT_LT(study.days, 54);
    EXPECT_GE(study.result.effective, 0);
    EXPECT_LE(study.result.effective, 1);
    s.failuresPer1000NodeDays = 0;
    EXPECT_EQ(studyOf(s).result.failures, 0);
}

TEST(WhatIfFigures, WhatIsNotThereIsAbsent) {
    WhatIfStudy study = studyOf(preset("published_ft").scenario);
    EXPECT_NEAR(figuresOf(study).stallMs.value(), 180'000, 2'000);
    EXPECT_NEAR(figuresOf(study).returnMs.value(), 600'000, 2'000);
    study = studyOf(preset("published_sync").scenario);
    EXPECT_EQ(figuresOf(study).stallMs.value(), 600'000);
    EXPECT_FALSE(figuresOf(study).returnMs);
    EXPECT_FALSE(liveFigures({}).effective);
    test::SampleRun run;
    model::RunState state;
    for (const model::Event& e : run.events(30)) model::apply(state, e);
    ASSERT_EQ(state.counters.incidents, 0u);
    EXPECT_TRUE(liveFigures(state).effective);
    EXPECT_FALSE(liveFigures(state).stallMs);
    EXPECT_FALSE(liveFigures(state).returnMs);
}

TEST(WhatIfFigures, TheLiveJobHasItsMeans) {
    test::SampleRun run;
    model::RunState state;
    for (const model::Event& e : run.events(94)) model::apply(state, e);
    const WhatIfFigures live = liveFigures(state);
    const model::Counters& c = state.counters;
    ASSERT_GT(c.incidents - c.incidentsOpen, 0u);
    EXPECT_DOUBLE_EQ(live.stallMs.value(),
                     c.survivorStallMs / static_cast<double>(c.incidents - c.incidentsOpen));
    EXPECT_DOUBLE_EQ(live.returnMs.value(), c.rejoinMs / static_cast<double>(c.rejoins));
    EXPECT_EQ(live.effective.value(), state.effectiveTime);
}

TEST(Background, OfQuestionsThatCameMeanwhileTheNewestIsAnswered) {
    Background background;
    std::vector<int> answered;
    for (const int question : {2, 3, 4})
        background.run([question] { return question * question; },
                       [&](int answer) { answered.push_back(answer); });
    EXPECT_TRUE(answered.empty());
    ASSERT_TRUE(QTest::qWaitFor([&] { return answered.size() == 2; }));
    EXPECT_EQ(answered, (std::vector<int>{4, 16}));
}

}  // namespace
}  // namespace bulkhead::ui
