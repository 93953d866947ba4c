// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QDir>
#include <QFontInfo>
#include <QImage>

#include "app/models/expert_grid.h"
#include "app/widgets/fleet_map.h"
#include "app/widgets/heat_map.h"
#include "app/widgets/incident_bars.h"
#include "app/widgets/lane_timeline.h"
#include "app/widgets/theme.h"
#include "tests/app/support/console.h"
#include "tests/app/support/made_fleet.h"

/// Painted widgets against pictures kept beside this file. BULKHEAD_GOLDEN_WRITE=1 renews them;
/// look at every one before committing it.
namespace bulkhead::ui {
namespace {

constexpr int kLevels = 8;             // of 255, a channel may differ by
constexpr double kMostPixels = 0.005;  // share of pixels that may differ by more

double differing(const QImage& a, const QImage& b, QImage& diff) {
    int count = 0;
    diff = QImage(a.size(), QImage::Format_RGB32);
    for (int y = 0; y < a.height(); ++y)
        for (int x = 0; x < a.width(); ++x) {
            const QRgb p = a.pixel(x, y);
            const QRgb q = b.pixel(x, y);
            const int most = std::max({std::abs(qRed(p) - qRed(q)), std::abs(qGreen(p) - qGreen(q)),
                                       std::abs(qBlue(p) - qBlue(q))});
            diff.setPixel(
                x, y,
                most > kLevels ? qRgb(255, 0, 0) : qRgb(qGray(p) / 3, qGray(p) / 3, qGray(p) / 3));
            count += most > kLevels;
        }
    return static_cast<double>(count) / (a.width() * a.height());
}

class Golden : public testing::TestWithParam<Scheme> {
  protected:
    Golden() {
        test::SampleRun run;
        for (const auto& e : run.events(60)) model::apply(state, e);
    }
    void SetUp() override {
        ASSERT_EQ(QFontInfo(Theme::font()).family(), u"Roboto")
            << "pictures are drawn with Roboto: run ./dev deps";
        theme().setScheme(GetParam());
    }
    void TearDown() override { theme().setScheme(Scheme::kDark); }

    void compare(QWidget& widget, const QString& name, QSize size) {
        widget.resize(size);
        const QImage now = widget.grab().toImage().convertToFormat(QImage::Format_RGB32);
        const QString file = QStringLiteral(GOLDEN_DIR "/%1-%2.png")
                                 .arg(name, GetParam() == Scheme::kDark ? "dark" : "light");
        if (qEnvironmentVariableIsSet("BULKHEAD_GOLDEN_WRITE")) {
            ASSERT_TRUE(now.save(file));
            return;
        }
        const QImage kept = QImage(file).convertToFormat(QImage::Format_RGB32);
        ASSERT_FALSE(kept.isNull()) << qPrintable(file) << " is missing";
        ASSERT_EQ(kept.size(), now.size());
        QImage diff;
        const double share = differing(kept, now, diff);
        if (share <= kMostPixels) return;
        const QString at = QDir::temp().filePath(name + "-diff.png");
        diff.save(at);
        now.save(QDir::temp().filePath(name + "-now.png"));
        ADD_FAILURE() << 100 * share << " % of the pixels differ; see " << qPrintable(at);
    }

    model::RunState state;
};

TEST_P(Golden, Timeline) {
    LaneTimeline timeline;
    timeline.setState(&state);
    timeline.setCursorTime(state.startedNs + 10'000'000'000);
    compare(timeline, "timeline", {560, 200});
}

TEST_P(Golden, TimelineZoomedToAnIncident) {
    LaneTimeline timeline;
    timeline.setState(&state);
    const int64_t opened = state.incidents[0].openedNs;
    timeline.setRange(opened - 200'000'000, opened + 400'000'000);
    compare(timeline, "timeline-incident", {560, 200});
}

/// Behind the run: a pause, an outage of the controller, and a step that does not come.
TEST_P(Golden, TimelineOfAJobThatStoodStill) {
    const int64_t end = state.lastEventNs;
    const auto put = [&](int64_t seconds, auto body) {
        model::Event event;
        event.seq = state.seq + 1;
        event.timeNs = end + seconds * 1'000'000'000;
        event.body = std::move(body);
        model::apply(state, event);
    };
    using enum model::JobPhase;
    put(2, model::JobPhaseChanged{kPaused, ""});
    put(10, model::JobPhaseChanged{kTraining, ""});
    put(21, model::IncidentOpened{9, -1, 0, 60, model::EvidenceKind::kControllerLost, 0,
                                  "no controller for 8.0 s"});
    put(21, model::IncidentPhase{9, model::IncidentPhaseKind::kDetect, end + 13'000'000'000,
                                 end + 21'000'000'000});
    put(22, *state.lastCommit);
    put(22, model::IncidentClosed{9, 8000, 0, 32, 0, "went on at step 61"});
    put(34, model::JobPhaseChanged{kTraining, "nothing comes"});
    LaneTimeline timeline;
    timeline.setState(&state);
    compare(timeline, "timeline-still", {720, 240});
    IncidentBars bars;
    bars.set(state.incidents.back());
    compare(bars, "incident-outage", {560, 132});
}

TEST_P(Golden, HeatMap) {
    HeatMap map;
    map.set(expertGrid(state, LoadWindow::kTotal, 0));
    compare(map, "heat-map", {640, 220});
}

TEST_P(Golden, FleetMapOfFewRanks) {
    FleetMap map;
    map.setFleet(test::madeFleet({2, 2, 2}), FleetFigure::kState);
    map.setSelected(0, 1);
    compare(map, "fleet-map-few", {640, 260});
}

TEST_P(Golden, FleetMapOfThousandsOfRanks) {
    FleetMap map;
    map.setFleet(test::madeFleet({12, 1024, 8}), FleetFigure::kThroughput);
    map.setSelected(0, 1);
    compare(map, "fleet-map-many", {900, 420});
}

TEST_P(Golden, IncidentPhases) {
    IncidentBars bars;
    bars.set(state.incidents[0]);
    compare(bars, "incident", {560, 132});
}

TEST_P(Golden, TheWholeWindow) {
    test::Console console(60);
    console.window->layout().arrange();
    console.window->resize(1280, 800);
    console.settle();
    console.window->setFocus();
    compare(*console.window, "window", {1280, 800});
}

INSTANTIATE_TEST_SUITE_P(Schemes, Golden, testing::Values(Scheme::kDark, Scheme::kLight),
                         [](const auto& info) {
                             return info.param == Scheme::kDark ? "Dark" : "Light";
                         });

}  // namespace
}  // namespace bulkhead::ui
