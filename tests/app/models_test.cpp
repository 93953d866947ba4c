// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QAbstractItemModelTester>
#include <QSignalSpy>

#include "app/models/card_model.h"
#include "app/models/event_log_model.h"
#include "app/models/expert_grid.h"
#include "app/models/fault_form.h"
#include "app/models/fault_model.h"
#include "app/models/fleet_model.h"
#include "app/models/gpu_rows.h"
#include "app/models/incident_model.h"
#include "app/models/message_log.h"
#include "app/models/range_words.h"
#include "app/models/roles.h"
#include "app/models/runs_model.h"
#include "app/models/series.h"
#include "app/models/units.h"
#include "backend/model/incident_phases.h"
#include "tests/app/support/sample_run.h"

namespace bulkhead::ui {
namespace {

using Mode = QAbstractItemModelTester::FailureReportingMode;

QString shown(const QAbstractItemModel& model, int row, int column,
              const QModelIndex& parent = {}) {
    return model.index(row, column, parent).data().toString();
}

/// Turns the model tester's warnings into failures of the test that caused them.
class Models : public testing::Test {
  protected:
    Models() {
        complaints = 0;
        before_ = qInstallMessageHandler(
            [](QtMsgType, const QMessageLogContext& context, const QString& words) {
                if (QByteArrayView(context.category).startsWith("qt.modeltest")) ++complaints;
                fprintf(stderr, "%s\n", qPrintable(words));
            });
    }
    ~Models() override {
        qInstallMessageHandler(before_);
        EXPECT_EQ(complaints, 0);
    }
    static inline int complaints = 0;
    test::SampleRun run;
    RunFeed feed;

  private:
    QtMessageHandler before_;
};

TEST_F(Models, FleetListsRanksUnderTheirReplica) {
    FleetModel model(feed);
    const QAbstractItemModelTester tester(&model, Mode::Warning);
    feed.apply(run.events(30));
    model.refresh();
    ASSERT_EQ(model.rowCount(), 6);  // 4 replicas and 2 nodes
    const QModelIndex second = model.index(1, 0);
    ASSERT_EQ(model.rowCount(second), 2);
    EXPECT_EQ(shown(model, 1, FleetModel::kState), "Training");
    EXPECT_EQ(shown(model, 1, FleetModel::kName, second), "Rank r1s1");
    EXPECT_EQ(model.index(1, 0, second).data(kShardRole).toInt(), 1);
    EXPECT_EQ(model.indexOf(1, 1), model.index(1, 0, second));
}

TEST_F(Models, FleetUpdatesInPlaceWhileRowsStay) {
    FleetModel model(feed);
    const QAbstractItemModelTester tester(&model, Mode::Warning);
    feed.apply(run.events(5));
    model.refresh();
    QSignalSpy resets(&model, &QAbstractItemModel::modelReset);
    feed.apply(run.nextStep());
    model.refresh();
    EXPECT_EQ(resets.count(), 0);
    EXPECT_EQ(shown(model, 0, FleetModel::kStep), "6");
}

TEST_F(Models, FleetShowsADashWhereThereIsNoFigure) {
    feed.apply(run.events(46));  // replica 2 fetches
    FleetModel model(feed);
    model.refresh();
    EXPECT_EQ(shown(model, 2, FleetModel::kTokens), noFigure());
    EXPECT_TRUE(shown(model, 2, FleetModel::kState).startsWith("Fetching"));
}

TEST_F(Models, AnAgeThatNobodyMeasuredIsADash) {
    feed.apply(run.events(5));
    model::FleetSampled fleet;
    for (int32_t s = 0; s < 2; ++s) {
        model::RankSample& rank = fleet.ranks.emplace_back();
        rank.rank = {1, s};
        rank.incarnation = 1;
    }
    fleet.ranks[1].beatAgeMs = 40;
    feed.apply({{feed.state().seq + 1, feed.state().lastEventNs, {}, fleet}});
    FleetModel model(feed);
    model.refresh();
    const QModelIndex replica = model.index(1, 0);
    EXPECT_EQ(shown(model, 0, FleetModel::kBeat, replica), noFigure());
    EXPECT_EQ(shown(model, 1, FleetModel::kBeat, replica), "40\u202fms");
    EXPECT_EQ(shown(model, 1, FleetModel::kBeat), "40\u202fms") << "the worst that is known";
    EXPECT_EQ(shown(model, 1, FleetModel::kProgress), noFigure());
}

TEST_F(Models, IncidentsComeNewestFirstAndSayWhatTheyCost) {
    IncidentModel model(feed);
    const QAbstractItemModelTester tester(&model, Mode::Warning);
    feed.apply(run.events(60));
    model.refresh();
    ASSERT_EQ(model.rowCount(), 1);
    EXPECT_EQ(shown(model, 0, IncidentModel::kOutcome), "rejoined at step 50");
    EXPECT_EQ(model::phaseMs(*model.at(0), model::IncidentPhaseKind::kDetect), 4);
    for (int i = 0; i < 40; ++i) feed.apply(run.nextStep());
    model.refresh();
    ASSERT_EQ(model.rowCount(), 2);
    EXPECT_EQ(shown(model, 0, IncidentModel::kId), "#2");
}

TEST_F(Models, CardsPutWhatIsOpenFirstAndStayWhileARunGoesOn) {
    CardModel model(feed, {});
    const QAbstractItemModelTester tester(&model, Mode::Warning);
    feed.apply(run.events(46));
    model.refresh();
    ASSERT_EQ(model.rowCount(), 1);
    EXPECT_EQ(model.openCount(), 1);
    EXPECT_TRUE(shown(model, 0, CardModel::kTitle).startsWith("#1 "));
    for (int step = 46; step < 94; ++step) {
        feed.apply(run.nextStep());
        model.refresh();
    }
    ASSERT_EQ(model.rowCount(), 2);
    EXPECT_EQ(model.at(0)->incident, 2u);
    EXPECT_TRUE(model.at(0)->open);
    EXPECT_TRUE(model.at(0)->back) << "the first recovery tells how long the second takes";
    EXPECT_FALSE(model.at(1)->open);
    EXPECT_EQ(model.rowOf(1), 1);
    EXPECT_EQ(model.rowOf(7), -1);
}

TEST_F(Models, MessagesComeNewestFirstAndTheOldestGo) {
    MessageLog log;
    const QAbstractItemModelTester tester(&log, Mode::Warning);
    for (size_t i = 0; i <= MessageLog::kCapacity; ++i)
        log.add(static_cast<int64_t>(i) + 1, QString::number(i), Tone::kNeutral);
    EXPECT_EQ(log.rowCount(), static_cast<int>(MessageLog::kCapacity));
    EXPECT_EQ(shown(log, 0, MessageLog::kText), QString::number(MessageLog::kCapacity));
    EXPECT_EQ(shown(log, log.rowCount() - 1, MessageLog::kText), "1");
}

TEST_F(Models, FaultsNameTheIncidentTheyCaused) {
    FaultModel model(feed);
    const QAbstractItemModelTester tester(&model, Mode::Warning);
    feed.apply(run.events(60));
    model.refresh();
    ASSERT_EQ(model.rowCount(), 1);
    EXPECT_EQ(shown(model, 0, FaultModel::kIncident), "#1");
}

TEST_F(Models, LogLeavesGaugesOutAndTakesHistoryInFront) {
    EventLogModel model(feed);
    const QAbstractItemModelTester tester(&model, Mode::Warning);
    const auto old = run.events(3);
    model::RunState state;
    for (const auto& e : old) model::apply(state, e);
    feed.reset(state);
    feed.apply(run.nextStep());
    const int live = model.rowCount();
    ASSERT_GT(live, 0);
    model.prepend(old);
    EXPECT_GT(model.rowCount(), live);
    for (int i = 1; i < model.rowCount(); ++i)
        EXPECT_LT(model.index(i - 1, 0).data(kIdRole).toULongLong(),
                  model.index(i, 0).data(kIdRole).toULongLong());
    model.prepend(old);  // nothing twice
    EXPECT_EQ(model.index(0, 0).data(kIdRole).toULongLong(), 1u);
}

TEST_F(Models, LogTakesRoutineEventsOfThePastOnlyWhenAsked) {
    EventLogModel model(feed);
    const QAbstractItemModelTester tester(&model, Mode::Warning);
    const auto old = run.events(60);
    const auto routine = [&] {
        int count = 0;
        for (int i = 0; i < model.rowCount(); ++i)
            count += model.index(i, 0).data(kRoutineRole).toBool();
        return count;
    };
    EXPECT_TRUE(model.prepend(old, false));
    EXPECT_GT(model.rowCount(), 0);
    EXPECT_EQ(routine(), 0);
    model.dropUntil(old.back().seq);
    EXPECT_EQ(model.rowCount(), 0);
    model.prepend(old, true);
    EXPECT_GE(routine(), 60);
}

TEST(EventTypes, TheLogAsksHistoryForWhatItShows) {
    const auto asked = [](bool withRoutine, std::string_view type) {
        const std::vector<std::string> types = typesForLog(withRoutine);
        return std::find(types.begin(), types.end(), type) != types.end();
    };
    EXPECT_TRUE(asked(false, model::IncidentOpened::kType));
    EXPECT_TRUE(asked(false, model::RankOutput::kType));
    EXPECT_FALSE(asked(false, model::StepCommitted::kType));
    EXPECT_TRUE(asked(true, model::StepCommitted::kType));
    EXPECT_FALSE(asked(true, model::FleetSampled::kType));
}

TEST_F(Models, FilterNeedsEveryConditionToHold) {
    EventLogModel model(feed);
    EventFilter filter;
    filter.setSourceModel(&model);
    const QAbstractItemModelTester tester(&filter, Mode::Warning);
    feed.apply(run.events(60));
    filter.setMinSeverity(model::Severity::kWarning);
    const int warnings = filter.rowCount();
    EXPECT_EQ(warnings, 3);
    filter.setText("signal 9");
    filter.setReplica(2);
    EXPECT_EQ(filter.rowCount(), 3);
    filter.setReplica(3);
    EXPECT_EQ(filter.rowCount(), 0);
}

TEST_F(Models, RowAtFindsTheLastLineBeforeAMoment) {
    EventLogModel model(feed);
    feed.apply(run.events(10));
    EXPECT_EQ(model.rowAt(0), -1);
    EXPECT_EQ(model.rowAt(feed.state().lastEventNs), model.rowCount() - 1);
}

TEST_F(Models, ExpertSharesOfALayerAverageToOne) {
    feed.apply(run.events(20));
    const ExpertGrid grid = expertGrid(feed.state(), LoadWindow::kTotal, -1);
    ASSERT_EQ(grid.layers, test::SampleRun::kMoeLayers);
    ASSERT_EQ(grid.experts, test::SampleRun::kExperts);
    double sum = 0;
    for (int e = 0; e < grid.experts; ++e) sum += grid.at(2, e);
    EXPECT_NEAR(sum / grid.experts, 1, 1e-9);
    ExpertTableModel table;
    const QAbstractItemModelTester tester(&table, Mode::Warning);
    table.set(grid);
    EXPECT_EQ(table.columnCount(), grid.experts + 1);
    EXPECT_EQ(shown(table, 2, 0), formatNumber(grid.imbalance[2], 2));
}

TEST_F(Models, LoadsOfAForeignShapeGiveAnEmptyGrid) {
    model::RunState state;
    state.experts.moeLayers = 2;
    state.experts.domains = 3;
    state.experts.experts = 4;
    state.experts.latest = {1, 2, 3};
    EXPECT_TRUE(expertGrid(state, LoadWindow::kLatest, -1).empty());
}

TEST_F(Models, AMixtureIsNamedByItsDecoderLayerWhenTheModelTells) {
    model::ModelInfo model;
    model.moeLayers = 2;
    EXPECT_EQ(mixtureName(model, 1), "Mixture 1");
    model.mixtureLayers = {1, 3};
    EXPECT_EQ(mixtureName(model, 0), "Layer 1");
    EXPECT_EQ(mixtureName(model, 1), "Layer 3");
}

TEST_F(Models, ALineOfALoggerLosesItsTimeAndKeepsItsLevel) {
    const OutputText warning = outputText("15:15:13.758 warning step 56 attempt 1: no");
    EXPECT_EQ(warning.severity, model::Severity::kWarning);
    EXPECT_EQ(warning.text, "step 56 attempt 1: no");
    EXPECT_EQ(outputText("2026-11-21 15:15:13.758 info ready").text, "ready");
    EXPECT_EQ(outputText("2026-11-21 15:15:13.758 info ready").severity, model::Severity::kInfo);
    EXPECT_EQ(outputText("Segmentation fault").text, "Segmentation fault");
    model::Event event;
    event.body = model::RankOutput{{2, 1}, 1, true, "15:15:13.758 info model stands"};
    EXPECT_EQ(eventText(event).kind, "Output");
    EXPECT_EQ(eventText(event).text, "model stands");
}

TEST_F(Models, AWorkersWarningIsAWarningInTheLog) {
    EventLogModel log(feed);
    model::Event event;
    event.seq = 1;
    event.body = model::RankOutput{{2, 1}, 1, true, "15:15:13.758 error no checkpoint"};
    log.append({event});
    EXPECT_EQ(shown(log, 0, EventLogModel::kSeverity), "Error");
}

TEST_F(Models, FleetListsTheNodesAfterTheReplicas) {
    FleetModel model(feed);
    const QAbstractItemModelTester tester(&model, Mode::Warning);
    feed.apply(run.events(30));
    model.refresh();
    const QModelIndex node = model.indexOf(QStringLiteral("node1"));
    ASSERT_TRUE(node.isValid());
    EXPECT_EQ(node.row(), 5);
    EXPECT_EQ(model.rowCount(node), 0);
    EXPECT_EQ(node.siblingAtColumn(FleetModel::kState).data(), "Up");
    EXPECT_EQ(node.siblingAtColumn(FleetModel::kNode).data(), "4/4 used");
    EXPECT_EQ(node.data(kNodeRole), "node1");
    EXPECT_EQ(node.data(kReplicaRole), -1);
    EXPECT_EQ(model.indexOf(3, 1).data(kNodeRole), "node1");
}

TEST_F(Models, RunsShowAnInterruptedRunAsSuch) {
    RunsModel model;
    const QAbstractItemModelTester tester(&model, Mode::Warning);
    model::RunInfo run;
    run.id = "demo-1";
    run.phase = "interrupted";
    model.set({run});
    EXPECT_EQ(shown(model, 0, RunsModel::kHow), "Interrupted");
    EXPECT_EQ(shown(model, 0, RunsModel::kLoss), noFigure());
    run.phase = "superseded by demo-2";
    model.set({run});
    EXPECT_EQ(shown(model, 0, RunsModel::kHow), "Superseded by demo-2");
}

TEST(Series, DecimationKeepsEndsAndExtremes) {
    Points points;
    for (int i = 0; i < 10'000; ++i) points.emplace_back(i, i == 4321 ? 99.0 : std::sin(i * 0.01));
    const Points few = decimated(points, 100);
    EXPECT_LE(few.size(), 202u);
    EXPECT_EQ(few.front(), points.front());
    EXPECT_EQ(few.back(), points.back());
    EXPECT_TRUE(std::any_of(few.begin(), few.end(), [](const QPointF& p) { return p.y() == 99; }));
    EXPECT_TRUE(std::is_sorted(few.begin(), few.end(),
                               [](const QPointF& a, const QPointF& b) { return a.x() < b.x(); }));
}

/// `steps` steps of loss 5 and one of 50 in the middle of them.
model::RunState longRun(uint64_t steps) {
    model::RunState state;
    model::Event event;
    for (uint64_t step = 1; step <= steps; ++step) {
        model::StepCommitted commit;
        commit.record.step = step;
        commit.loss = step == steps / 2 ? 50 : 5;
        commit.domainLoss = {5, -1};
        event.seq = step;
        event.timeNs = static_cast<int64_t>(step) * 1'000'000'000;
        event.body = commit;
        model::apply(state, event);
    }
    return state;
}

TEST(Series, SmoothingOfAConstantIsThatConstant) {
    model::RunState state = longRun(30'000);
    EXPECT_NEAR(smoothedSeries(state, Metric::kStallMs, 0.9).back().y(), 0, 1e-9);
    EXPECT_NEAR(domainLoss(state, 0, 0.9).back().y(), 5, 1e-9);
    EXPECT_TRUE(domainLoss(state, 1, 0.9).empty());
    EXPECT_EQ(smoothedSeries(state, Metric::kLoss, 0).back().y(), 5);
}

TEST(Series, ALongRunIsChartedFromItsFirstStepAndNoPeakIsLost) {
    const model::RunState state = longRun(100'000);
    ASSERT_LT(state.steps.size(), 100'000u);
    const Points loss = seriesOf(state, Metric::kLoss);
    EXPECT_EQ(loss.front().x(), 1);
    EXPECT_EQ(loss.back().x(), 100'000);
    EXPECT_TRUE(std::is_sorted(loss.begin(), loss.end(),
                               [](const QPointF& a, const QPointF& b) { return a.x() < b.x(); }));
    const auto peak = std::find_if(loss.begin(), loss.end(), [](auto& p) { return p.y() == 50; });
    ASSERT_NE(peak, loss.end());
    EXPECT_NEAR(peak->x(), 50'000, 64);
    const RangeWords range = chartRange(state);
    EXPECT_TRUE(range.text.contains(formatCount(100'000)) && range.text.contains(u"64"))
        << range.text.toStdString();
    const int64_t early = timeOfStep(state, 700);
    EXPECT_NEAR(static_cast<double>(early) / 1e9, 700, 1);
    EXPECT_NEAR(static_cast<double>(stepAt(state, early)), 700, 1);
}

TEST(Series, StepAndTimeFindEachOther) {
    model::RunState state;
    test::SampleRun run;
    for (const auto& e : run.events(12)) model::apply(state, e);
    const int64_t time = timeOfStep(state, 7);
    EXPECT_EQ(stepAt(state, time), 7u);
    EXPECT_EQ(stepAt(state, time - 1), 6u);
}

TEST(Units, FiguresCarryTheirUnitAndNeverPretend) {
    const QChar narrow(0x202F);
    EXPECT_EQ(formatMs(0.4), QString("0.4") + narrow + "ms");
    EXPECT_EQ(formatMs(999.6), QString("1.00") + narrow + "s");
    EXPECT_EQ(formatMs(125'000), QString("2") + narrow + "min 05" + narrow + "s");
    EXPECT_EQ(formatMs(0), QString("0") + narrow + "ms");
    EXPECT_EQ(formatMs(0.01), QString("<0.1") + narrow + "ms");
    EXPECT_EQ(formatMs(-1), noFigure());
    EXPECT_EQ(formatCount(1284032), QString("1") + narrow + "284" + narrow + "032");
    EXPECT_EQ(formatBytes(1536), QString("1.54") + narrow + "kB");
    EXPECT_EQ(formatElapsed(125'300'000'000), "2:05.3");
    EXPECT_EQ(formatOptional(std::optional<double>(), formatRate), noFigure());
}

TEST(GpuRows, AGpuThatHadTroubleComesFirstAndSaysWhat) {
    model::NodeView node;
    node.node = "node7";
    node.state = model::NodeState::kUp;
    node.sample.emplace().gpus.resize(3);
    for (uint32_t g = 0; g < 3; ++g) node.sample->gpus[g].gpu = g;
    model::RunState state;
    state.nodes.push_back(node);
    EXPECT_TRUE(gpuLines(state, node).front().startsWith("<b>GPU 0</b>"));
    EXPECT_EQ(gpuNews(state), QString());

    state.gpuTroubles.push({0, {"node7", 2, "", 79, std::nullopt, 0, {}}});
    state.gpuTroubles.push({0, {"another", 1, "", 79, std::nullopt, 0, {}}});
    const QStringList lines = gpuLines(state, node);
    ASSERT_EQ(lines.size(), 3);
    EXPECT_TRUE(lines[0].startsWith("<b>GPU 2</b>"));
    EXPECT_TRUE(lines[0].contains("Xid 79"));
    EXPECT_FALSE(lines[1].contains("Xid 79"));
    EXPECT_TRUE(gpuNews(state).startsWith("GPU 2 of node7: Xid 79"));
}

TEST(GpuRows, OfManyGpusAndRanksTheFirstAreNamed) {
    constexpr int32_t kRanks = 100;
    model::RunState state;
    auto& node = state.nodes.emplace_back();
    node.node = "node7";
    node.sample.emplace();
    for (int32_t i = 0; i < kRanks; ++i) {
        const auto gpu = static_cast<uint32_t>(i / 2);
        if (i % 2 == 0) node.sample->gpus.emplace_back().gpu = gpu;
        auto& rank = state.ranks.emplace_back();
        rank.rank = {3, i};
        rank.pid = 1 + i;
        rank.node = node.node;
        rank.gpus = {gpu};
    }
    const QStringList lines = gpuLines(state, 3, -1);
    ASSERT_EQ(lines.size(), 33);
    EXPECT_TRUE(lines[31].contains("r3s62, r3s63"));
    EXPECT_TRUE(lines[32].contains("18"));
    EXPECT_EQ(gpuLines(state, 3, 99).size(), 1);
    EXPECT_EQ(gpuLines(state, 2, -1).size(), 0);
    EXPECT_EQ(ranksInWords({{0, 1}, {2, 0}}), "r0s1, r2s0");
    EXPECT_TRUE(ranksInWords(std::vector<RankId>(40)).endsWith("and 8 more"));
}

TEST(FleetModel, ANodeAddsUpItsOwnRanks) {
    RunFeed feed;
    model::RunState state;
    for (const char* name : {"a", "b"}) state.nodes.emplace_back().node = name;
    state.replicas.emplace_back().replica = 0;
    for (int32_t i = 0; i < 5; ++i) {
        auto& rank = state.ranks.emplace_back();
        rank.rank = {0, i};
        rank.pid = i == 4 ? 0 : 1 + i;  // the last one has no process
        rank.node = i % 2 == 0 ? "a" : "b";
        rank.tokensPerSecond = 10 + i;
    }
    feed.reset(state);
    FleetModel fleet(feed);
    fleet.refresh();
    const auto cell = [&](const char* node, int column) {
        return fleet.index(fleet.indexOf(node).row(), column).data().toString();
    };
    EXPECT_TRUE(cell("a", FleetModel::kNode).startsWith("2/"));
    EXPECT_EQ(cell("a", FleetModel::kTokens), formatTokenRate(22));
    EXPECT_EQ(cell("b", FleetModel::kTokens), formatTokenRate(24));
    EXPECT_EQ(cell("b", FleetModel::kCpu), noFigure());
}

TEST(FaultForm, AFaultLosesTheFieldsItsKindLacks) {
    model::FaultSpec spec;
    spec.kind = model::FaultKind::kKillReplica;
    spec.replica = 2;
    spec.shard = 1;
    spec.durationMs = 3000;
    spec.node = "node0";
    const model::FaultSpec clean = cleaned(spec);
    EXPECT_EQ(clean.shard, -1);
    EXPECT_EQ(clean.durationMs, 0u);
    EXPECT_TRUE(clean.node.empty());
    EXPECT_EQ(clean.replica, 2);
}

}  // namespace
}  // namespace bulkhead::ui
