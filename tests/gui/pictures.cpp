// SPDX-License-Identifier: GPL-3.0-only
#include <QApplication>
#include <QTextStream>

#include "app/views/screenshots.h"
#include "tests/app/support/console.h"

/// Pictures of every view on the made-up run, for judging the design without a daemon:
/// bulkhead_console_pictures FOLDER [STEPS].
int main(int argc, char** argv) {
    using namespace bulkhead;
    if (qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM")) qputenv("QT_QPA_PLATFORM", "offscreen");
    QApplication app(argc, argv);
    ui::Theme theme(app, ui::Scheme::kDark);
    test::Console console;
    for (int i = 0; i < 5; ++i) {
        model::RunInfo run;
        run.id = "demo-" + std::to_string(5 - i);
        run.workload = "llama_moe";
        run.phase = i == 0 ? "training" : i == 3 ? "interrupted" : "finished";
        run.startedNs = test::SampleRun::kStartNs - i * 7'200'000'000'000;
        run.endedNs = run.startedNs + 54'000'000'000 * (i + 1);
        run.replicas = 4;
        run.shards = 2;
        run.steps = 140 + 37ull * static_cast<uint64_t>(i);
        run.incidents = static_cast<uint64_t>(2 * i);
        run.faults = static_cast<uint64_t>(i);
        run.lastLoss = 1.9 - 0.05 * i;
        run.effectiveTime = 0.97 - 0.01 * i;
        console.log->runs.push_back(run);
    }
    console.goLive(argc > 2 ? QString::fromLocal8Bit(argv[2]).toInt() : 94);
    ui::Screenshots::Options options;
    options.folder = argc > 1 ? QString::fromLocal8Bit(argv[1]) : QStringLiteral("pictures");
    options.seconds = 1;
    ui::Screenshots pictures(*console.window, console.feed, *console.session, options);
    QObject::connect(&pictures, &ui::Screenshots::finished, &app,
                     [](bool ok, const QString& words) {
                         QTextStream(stdout) << words << '\n';
                         QApplication::exit(ok ? 0 : 1);
                     });
    pictures.start();
    return QApplication::exec();
}
