// SPDX-License-Identifier: GPL-3.0-only
#include "bench/console/large_runs.h"

#include <time.h>
#include <unistd.h>

#include <QApplication>
#include <QDir>
#include <QFileInfo>
#include <QProcess>
#include <QTest>
#include <QTimer>
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>

#include "tests/app/support/console.h"

namespace bulkhead::bench {
namespace {

constexpr int kPatienceMs = 120'000;
constexpr int kLookMs = 5;
constexpr double kReplaySpeed = 100;

double secondsOf(clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

/// The same in every process of this machine.
double now() {
    return secondsOf(CLOCK_MONOTONIC);
}

void print(const char* figure, double value) {
    std::printf("%s %.6f\n", figure, value);
    std::fflush(stdout);
}

/// Resident memory of this process and of all below it, in MB.
double memoryOfFamily() {
    std::map<pid_t, pid_t> parents;
    std::map<pid_t, double> sizes;
    for (const QString& name : QDir("/proc").entryList(QDir::Dirs)) {
        bool isProcess = false;
        const auto pid = static_cast<pid_t>(name.toInt(&isProcess));
        if (!isProcess) continue;
        std::ifstream status("/proc/" + name.toStdString() + "/status");
        for (std::string word; status >> word;) {
            if (word == "PPid:") status >> parents[pid];
            if (word == "VmRSS:") status >> sizes[pid];
        }
    }
    const auto isOurs = [&](pid_t pid) {
        while (pid > 1 && pid != getpid()) pid = parents[pid];
        return pid == getpid();
    };
    double kilobytes = 0;
    for (const auto& [pid, size] : std::map(sizes))
        if (isOurs(pid)) kilobytes += size;
    return kilobytes / 1024;
}

/// Waits, so that the console's own timers and deliveries decide how long it takes.
bool waitFor(const std::function<bool()>& condition) {
    QTimer look;  // without it the last look at the clock may be long ago
    look.start(kLookMs);
    const double limit = now() + kPatienceMs / 1e3;
    while (!condition() && now() < limit)
        QCoreApplication::processEvents(QEventLoop::WaitForMoreEvents);
    return condition();
}

/// The longest time that the GUI's thread computed without coming back to its events. Its processor
/// time: that others had the processor is no fault of the console.
class LongestBlock {
  public:
    LongestBlock() {
        QObject::connect(&timer_, &QTimer::timeout, [this] {
            const double at = secondsOf(CLOCK_THREAD_CPUTIME_ID);
            if (last_ > 0) longest_ = std::max(longest_, at - last_);
            last_ = at;
        });
        timer_.start(kLookMs);
    }
    double seconds() const { return longest_; }

  private:
    QTimer timer_;
    double last_ = 0;
    double longest_ = 0;
};

uint64_t firstShown(const model::RunState& state) {
    if (!state.earlierSteps.empty()) return state.earlierSteps[0].first;
    return state.steps.empty() ? 0 : state.steps[0].step;
}

bool seekTo(test::Console& console, uint64_t step) {
    model::ReplayControl order;
    order.seekStep = step;
    console.session->controlReplay(order);
    const bool there = waitFor([&] {
        const auto& last = console.feed.state().lastCommit;
        return last && last->record.step == step;
    });
    (void)console.window->grab();
    return there;
}

void replay(test::Console& console, int seconds) {
    model::ReplayControl order;
    order.seekStep = 1;
    order.speed = kReplaySpeed;
    order.paused = false;
    console.session->controlReplay(order);
    waitFor([&] {
        const auto& position = console.session->status().position;
        return position && !position->paused;
    });
    LongestBlock block;
    const double end = now() + seconds;
    while (now() < end) QCoreApplication::processEvents(QEventLoop::WaitForMoreEvents);
    print("block_ms", block.seconds() * 1e3);
    print("replayed_steps", static_cast<double>(console.feed.state().counters.commits));
}

struct Case {
    const char* name;
    int steps;
    int replicas;
    int ranks;
    // At most:
    double openS;
    double seekMs;
    double memoryMb;
};

constexpr std::array kCases = {
    Case{"100,000 steps, 1 GB", 100'000, 12, 8, 1, 100, 300},
    Case{"12 x 1,365 ranks", 200, 12, 1365, 2, 100, 300},
    Case{"12 x 8,192 ranks", 50, 12, 8192, 2, 500, 600},
};

QString fileOf(const Place& place, const Case& c) {
    return QStringLiteral("%1/console/%2-steps-%3x%4.db")
        .arg(QString::fromStdString(place.out))
        .arg(c.steps)
        .arg(c.replicas)
        .arg(c.ranks);
}

void writeRun(const QString& file, const Case& c) {
    if (QFileInfo::exists(file)) return;
    QDir().mkpath(QFileInfo(file).path());
    const QString part = file + QStringLiteral(".part");
    for (const char* left : {"", "-wal", "-shm", "-writers"})
        QFile::remove(part + QLatin1String(left));
    const int status = QProcess::execute(
        QCoreApplication::applicationDirPath() + QStringLiteral("/bulkhead-bench-large-run"),
        {"--steps", QString::number(c.steps), "--replicas", QString::number(c.replicas), "--ranks",
         QString::number(c.ranks), "--out", part});
    if (status != 0 || !QFile::rename(part, file))
        die(absl::InternalError("no run file could be written: " + file.toStdString()));
}

std::map<std::string, double> open(const QString& file, int replaySeconds) {
    QProcess console;
    console.setProcessChannelMode(QProcess::ForwardedErrorChannel);
    const double begun = now();
    console.start(QCoreApplication::applicationFilePath(),
                  {"--open", file, "--replay", QString::number(replaySeconds)});
    console.waitForFinished(-1);
    if (console.exitCode() != 0)
        die(absl::InternalError(file.toStdString() + " was not opened by the console"));
    std::map<std::string, double> figures;
    for (const QString& line : QString::fromUtf8(console.readAllStandardOutput()).split('\n'))
        if (const auto words = line.split(' '); words.size() == 2)
            figures[words[0].toStdString()] = words[1].toDouble();
    figures["interactive_ms"] = (figures["interactive_at"] - begun) * 1e3;
    return figures;
}

}  // namespace

int openLargeRun(const QString& file, int replaySeconds) {
    test::Console console(0, client::Client::open);
    console.window->resize(1600, 1000);
    console.settle();
    print("interactive_at", now());
    print("before_mb", memoryOfFamily());
    const double asked = now();
    console.session->openRunFile(file, ui::Session::justLeave);
    if (!waitFor([&] { return console.session->status().replay && console.feed.hasRun(); }))
        return 1;
    (void)console.window->grab();
    print("picture_s", now() - asked);
    const uint64_t last = console.feed.state().lastCommit->record.step;
    print("first_step", static_cast<double>(firstShown(console.feed.state())));
    print("last_step", static_cast<double>(last));
    print("memory_mb", memoryOfFamily());
    std::vector<double> seeks;
    for (const uint64_t part : {7, 3, 9, 5, 1, 8, 2, 6, 4}) {
        const double begun = now();
        if (!seekTo(console, std::clamp<uint64_t>(last * part / 10 + part, 1, last))) return 1;
        seeks.push_back((now() - begun) * 1e3);
    }
    print("seek_ms", spreadOf(seeks).median);
    print("seek_most_ms", spreadOf(seeks).max);
    if (replaySeconds > 0) replay(console, replaySeconds);
    print("memory_later_mb", memoryOfFamily());
    return 0;
}

void measureLargeRuns(Report& report, const Place& place, int replaySeconds) {
    for (const Case& c : kCases) {
        const QString file = fileOf(place, c);
        writeRun(file, c);
        const bool isLong = &c == &kCases.front();
        std::map<std::string, double> of = open(file, isLong ? replaySeconds : 0);
        const std::string name = std::string(c.name) + ": ";
        report.note(name + "steps " + number(of["first_step"], 0) + " to " +
                    number(of["last_step"], 0) + " are shown, slowest seek " +
                    number(of["seek_most_ms"]) + " ms, memory " + number(of["before_mb"], 0) +
                    " MB before it, " + number(of["memory_later_mb"], 0) + " MB at the end.");
        report.atMost(name + "first picture of the whole run", of["picture_s"], c.openS, "s");
        report.atMost(name + "first step that is shown", of["first_step"], 1, "");
        report.atMost(name + "seek, median", of["seek_ms"], c.seekMs, "ms");
        report.atMost(name + "memory with daemon", of["memory_mb"], c.memoryMb, "MB");
        if (!isLong) continue;
        report.atMost("start to interactive", of["interactive_ms"], 500, "ms");
        report.atMost("longest block of the GUI thread in " + std::to_string(replaySeconds) +
                          " s of replay at 100x",
                      of["block_ms"], 50, "ms");
    }
}

}  // namespace bulkhead::bench
