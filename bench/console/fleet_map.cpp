// SPDX-License-Identifier: GPL-3.0-only
#include "bench/console/fleet_map.h"

#include <time.h>

#include <QApplication>
#include <QDeadlineTimer>
#include <QElapsedTimer>
#include <QTest>
#include <QTimer>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "app/views/fleet_map_panel.h"
#include "app/views/fleet_view.h"
#include "app/widgets/fleet_map.h"
#include "tests/app/support/console.h"
#include "tests/app/support/made_fleet.h"

namespace bulkhead::bench {
namespace {

constexpr QSize kView(1280, 640);
constexpr int kFrames = 120;  // at each zoom
constexpr QPoint kStep(28, 12);
constexpr uint32_t kSamples = 8;
constexpr int kPeriodMs = 1000;
constexpr int kTickMs = 5;
constexpr int kLimitMs = 20'000;

/// Processor time of this thread in milliseconds: that others had the processor is no fault of the
/// console.
double cpuMs() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

double percentile(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const auto at = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
    return values[at];
}

/// Zigzag over the map, so that there is always something new in sight.
void pan(ui::FleetMap& map, std::vector<double>& cpu, std::vector<double>& wall) {
    QPoint step = kStep;
    for (int frame = 0; frame < kFrames; ++frame) {
        QElapsedTimer clock;
        clock.start();
        const double before = cpuMs();
        const QPoint at = map.offset();
        map.pan(step);
        if (map.offset().x() == at.x()) step.setX(-step.x());
        if (map.offset().y() == at.y()) step.setY(-step.y());
        map.repaint();
        cpu.push_back(cpuMs() - before);
        wall.push_back(static_cast<double>(clock.nsecsElapsed()) / 1e6);
    }
}

void measurePanning(Report& report, ui::FleetMap& map) {
    std::vector<double> cpu;
    std::vector<double> wall;
    std::vector<double> zoomed;
    std::string byLevel;
    for (int level = 0; level < map.layoutOfMap().levels(); ++level) {
        map.showAll();
        const double before = cpuMs();
        map.zoom(level, map.rect().center());
        map.repaint();
        zoomed.push_back(cpuMs() - before);
        if (level == 0) continue;  // all of it is in sight
        std::vector<double> here;
        pan(map, here, wall);
        cpu.insert(cpu.end(), here.begin(), here.end());
        byLevel += (byLevel.empty() ? "" : ", ") + number(percentile(here, 0.99));
    }
    report.note(
        "Map of 12 x 8,192 ranks, 1280 x 640: 99th percentile of a frame of panning by zoom " +
        byLevel + " ms; of all " + number(percentile(cpu, 0.99)) + " ms of the processor, " +
        number(percentile(wall, 0.99)) + " ms by the clock; a first picture at a zoom " +
        number(percentile(zoomed, 1)) + " ms at most.");
    report.atMost("map of 12 x 8,192 ranks: frame of panning, 99th percentile",
                  percentile(cpu, 0.99), 16, "ms");
}

void measureSamples(Report& report, ui::FleetMap& map, model::RunState& state) {
    double most = 0;
    double folded = 0;
    for (int i = 0; i < ui::kFleetFigures; ++i) {
        const model::Event sample = test::nextSample(state, static_cast<uint32_t>(i));
        const double begun = cpuMs();
        model::apply(state, sample);
        folded = std::max(folded, cpuMs() - begun);
        for (const bool whole : {true, false}) {
            if (whole) map.showAll();
            const double before = cpuMs();
            map.setFleet(state, static_cast<ui::FleetFigure>(i));
            map.repaint();
            most = std::max(most, cpuMs() - before);
            map.zoom(3, map.rect().center());
        }
    }
    report.note("A sample of 98,304 ranks and 12,288 nodes is folded into the state in " +
                number(folded) + " ms at most.");
    report.atMost("map of 12 x 8,192 ranks: a new sample, recoloured and painted", most, 50, "ms");
}

/// The longest time that the GUI's thread computed without coming back to its events while a
/// sample came, was folded in and shown.
void measureConsole(Report& report, const model::RunState& state) {
    test::Console console;
    console.window->resize(1280, 720);
    console.goLive(3);
    auto shown = std::make_shared<model::RunState>(state);
    shown->seq = console.feed.state().seq + 1;
    console.log->run.onSnapshot(shown);
    const QDeadlineTimer limit(kLimitMs);
    while (console.feed.state().ranks.size() != state.ranks.size() && !limit.hasExpired())
        QCoreApplication::processEvents(QEventLoop::WaitForMoreEvents, 50);
    console.window->layout().toggleOnly(&console.view<ui::FleetView>());
    console.settle();
    // Longest stretches of the processor that the events of so long took.
    std::string bySample;
    double most = 0;
    const auto runFor = [&](int ms) {
        std::string parts;
        for (const QDeadlineTimer end(ms); !end.hasExpired();) {
            const double before = cpuMs();
            QCoreApplication::processEvents(QEventLoop::WaitForMoreEvents, kPeriodMs);
            const double took = cpuMs() - before;
            most = std::max(most, took);
            if (took > 5) parts += (parts.empty() ? "" : "+") + number(took, 0);
        }
        bySample += (bySample.empty() ? "" : ", ") + parts;
    };
    QTimer tick;  // else the last look at the clock may be long ago
    tick.start(kTickMs);
    runFor(kPeriodMs);  // the first picture
    bySample.clear();
    most = 0;
    for (uint32_t i = 0; i < kSamples; ++i) {
        console.log->run.onEvents({test::nextSample(console.feed.state(), 50 + i)});
        runFor(kPeriodMs);
    }
    report.note("Console with that map, blocks of the GUI thread of over 5 ms, by sample: " +
                bySample + " ms.");
    report.atMost("console with the map of 12 x 8,192 ranks: longest block by a sample", most, 50,
                  "ms");
}

}  // namespace

void measureFleetMap(Report& report) {
    model::RunState state = test::madeFleet({});
    ui::FleetMap map;
    map.resize(kView);
    map.show();
    if (!QTest::qWaitForWindowExposed(&map)) die(absl::InternalError("the map was not painted"));
    map.setFleet(state, ui::FleetFigure::kThroughput);
    measurePanning(report, map);
    measureSamples(report, map, state);
    map.hide();
    measureConsole(report, state);
}

}  // namespace bulkhead::bench
