// SPDX-License-Identifier: GPL-3.0-only
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <QApplication>
#include <QDockWidget>
#include <QElapsedTimer>
#include <QTimer>

#include "app/views/dock_layout.h"
#include "bench/console/fleet_map.h"
#include "bench/console/large_runs.h"
#include "bench/report.h"
#include "tests/app/support/console.h"

namespace {

using namespace bulkhead;

constexpr int kDeliveries = 100;
constexpr int kPeriodMs = 100;
constexpr int kStepsBefore = 2000;

double cpuSeconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Cost {
    double share;  ///< of one core
    double wallS;
};

/// One step's events ten times a second, which is more than a real job of this size sends.
Cost feedFor(test::Console& console) {
    QTimer timer;
    timer.setTimerType(Qt::PreciseTimer);
    int left = kDeliveries;
    QEventLoop loop;
    QObject::connect(&timer, &QTimer::timeout, [&] {
        console.log->run.onEvents(console.run.nextStep());
        if (--left == 0) loop.quit();
    });
    QElapsedTimer wall;
    wall.start();
    const double before = cpuSeconds();
    timer.start(kPeriodMs);
    loop.exec();
    const double wallS = static_cast<double>(wall.nsecsElapsed()) / 1e9;
    return {(cpuSeconds() - before) / wallS, wallS};
}

void showOnly(test::Console& console, const QStringList& ids) {
    for (ui::View* view : console.window->layout().views()) {
        QWidget* dock = console.window->layout().dockOf(view);
        dock->setVisible(ids.contains(view->id()));
    }
    console.settle();
}

}  // namespace

int main(int argc, char** argv) {
    QApplication app(argc, argv);
    bench::Place place;
    CLI::App line("What the console costs");
    std::string file;
    bool mapOnly = false;
    int replaySeconds = 30;
    bench::addPlace(line, place);
    line.add_option("--open", file, "only open this run file, and print what it cost");
    line.add_option("--replay", replaySeconds, "seconds of the long run at 100x; 1800 for the bar");
    line.add_flag("--map", mapOnly, "only the map of a large fleet");
    CLI11_PARSE(line, argc, argv);
    ui::Theme theme(app, ui::Scheme::kDark);
    if (!file.empty()) return bench::openLargeRun(QString::fromStdString(file), replaySeconds);
    if (mapOnly) {
        bench::Report report("console_map", {});
        bench::measureFleetMap(report);
        return report.finish(place.out);
    }
    test::Console console;
    QElapsedTimer attach;
    attach.start();
    console.goLive(kStepsBefore);
    const QPixmap first = console.window->grab();
    const double attachS = static_cast<double>(attach.nsecsElapsed()) / 1e9;

    bench::Report report("console", {"views", "of one core %", "deliveries/s"});
    report.note(
        "One step's events ten times a second upon a run of 2,000 steps, window 1600 x 1000, "
        "offscreen.");
    double main = 0;
    const std::vector<std::pair<const char*, QStringList>> cases = {
        {"fleet + training", {"fleet", "training"}},
        {"fleet + timeline + training", {"fleet", "timeline", "training"}},
        {"events", {"events"}},
        {"none", {}}};
    for (const auto& [name, ids] : cases) {
        showOnly(console, ids);
        const Cost cost = feedFor(console);
        if (main == 0) main = cost.share * 100;
        report.row(
            {name, bench::number(cost.share * 100), bench::number(kDeliveries / cost.wallS)});
    }
    report.atMost("console with Fleet and Training at 10 Hz", main, 15, "% of one core");
    report.atMost("attach to first full picture", attachS, 1, "s");
    bench::measureFleetMap(report);
    bench::measureLargeRuns(report, place, replaySeconds);
    return report.finish(place.out);
}
