// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QLabel>
#include <QTest>
#include <QTreeView>
#include <map>

#include "app/models/fleet_cells.h"
#include "app/session/event_history.h"
#include "app/views/fleet_view.h"
#include "app/views/status_strip.h"
#include "tests/app/support/console.h"

/// The screen while nobody knows how the job is.
namespace bulkhead::ui {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

client::Failure lostFailure() {
    return {client::FailureCode::kUnreachable, "Lost", "The daemon went away.", "Start it again.",
            true};
}

/// Pixels that are no shade of grey.
qint64 coloured(const QImage& image) {
    qint64 count = 0;
    for (int y = 0; y < image.height(); ++y)
        for (int x = 0; x < image.width(); ++x) {
            const QRgb c = image.pixel(x, y);
            const int low = std::min({qRed(c), qGreen(c), qBlue(c)});
            const int high = std::max({qRed(c), qGreen(c), qBlue(c)});
            count += high - low > 24;
        }
    return count;
}

class Truth : public testing::Test {
  protected:
    void lose() {
        console.log->jobs.onDisconnected(lostFailure(), steady_clock::now() + seconds(30));
        console.log->run.onDisconnected(lostFailure(), steady_clock::now() + seconds(30));
        ASSERT_TRUE(QTest::qWaitFor([&] { return console.session->status().unknown; }));
    }
    QString figure(const char* name) {
        auto* label = qobject_cast<QLabel*>(console.named(name));
        return label ? label->text() : QString();
    }
    QString heartbeatAge() {
        const auto* model = console.view<FleetView>().findChild<QTreeView*>()->model();
        const int column = static_cast<int>(FleetColumn::kBeat);
        return model->index(0, column, model->index(0, 0)).data().toString();
    }

    test::Console console{60};
};

TEST_F(Truth, NoPageKeepsAColourWhenTheDaemonIsLostAndAllHaveThemBackWithIt) {
    const auto pictures = [&] {
        std::map<QString, qint64> counts;
        for (View* view : console.window->layout().views()) {
            if (view->id() == "whatif" || view->id() == "runs" || view->id() == "audit")
                continue;  // not how the job is now
            console.window->layout().raise(view);
            for (int i = 0; i < 5; ++i) QCoreApplication::processEvents();
            counts[view->title()] = coloured(view->grab().toImage());
        }
        return counts;
    };
    auto before = pictures();
    ASSERT_GT(before["Fleet"], 0);
    ASSERT_GT(before["Timeline"], 0);
    lose();
    for (const auto& [page, count] : pictures()) EXPECT_EQ(count, 0) << qPrintable(page);
    EXPECT_EQ(coloured(console.window->strip().findChild<ReplicaMarks*>()->grab().toImage()), 0);
    console.log->jobs.onConnected(model::ServerInfo{});
    console.log->run.onSnapshot(console.log->state);
    ASSERT_TRUE(QTest::qWaitFor([&] { return !console.session->status().unknown; }));
    EXPECT_GT(pictures()["Fleet"], 0);
}

TEST_F(Truth, TheStripSaysUnknownAndSinceWhenAndAgesGoOn) {
    EXPECT_TRUE(figure("Job").contains("Training"));
    EXPECT_EQ(console.named("The state of the job is unknown"), nullptr);
    lose();
    EXPECT_TRUE(figure("Job").contains("Unknown"));
    EXPECT_FALSE(figure("Job").contains("Training"));
    QWidget* banner = console.named("The state of the job is unknown");
    ASSERT_NE(banner, nullptr);
    EXPECT_EQ(banner->width(), console.window->width());
    EXPECT_TRUE(console.says("The daemon went away."));
    EXPECT_TRUE(console.window->strip().explanation().contains("ago: Training"));
    const QString age = heartbeatAge();
    const QString since = figure("Since when nothing is known");
    EXPECT_TRUE(QTest::qWaitFor(
        [&] { return heartbeatAge() != age && figure("Since when nothing is known") != since; }));
    console.log->jobs.onConnected(model::ServerInfo{});
    console.log->run.onSnapshot(console.log->state);
    EXPECT_TRUE(QTest::qWaitFor([&] { return figure("Job").contains("Training"); }));
    EXPECT_EQ(console.named("The state of the job is unknown"), nullptr);
}

TEST_F(Truth, AListOfJobsThatGoesOnDoesNotHideThatTheRunIsSilent) {
    const auto until = steady_clock::now() + seconds(20);
    while (!console.session->status().unknown && steady_clock::now() < until) {
        console.log->jobs.onJobs(console.session->status().jobs);
        QTest::qWait(100);
    }
    EXPECT_TRUE(console.session->status().unknown);
    EXPECT_EQ(console.session->status().link, Link::kLive);
    EXPECT_TRUE(console.says("nothing comes over it"));
}

TEST_F(Truth, TheLinkIsNotLiveWhileTheStreamOfTheRunIsDown) {
    console.log->run.onDisconnected(lostFailure(), steady_clock::now() + seconds(30));
    ASSERT_TRUE(
        QTest::qWaitFor([&] { return console.session->status().link == Link::kReconnecting; }));
    console.log->jobs.onConnected(model::ServerInfo{});
    console.log->jobs.onJobs(console.session->status().jobs);
    QTest::qWait(300);
    EXPECT_EQ(console.session->status().link, Link::kReconnecting);
    console.log->run.onSnapshot(console.log->state);
    EXPECT_TRUE(QTest::qWaitFor([&] { return console.session->status().link == Link::kLive; }));
}

TEST_F(Truth, TheHistoryOfAnEarlierSnapshotIsNotShownUnderALaterOne) {
    EventHistory history(*console.session);
    std::vector<size_t> shown;
    QObject::connect(&history, &EventHistory::page, [&](const std::vector<model::Event>& events) {
        shown.push_back(events.size());
    });
    console.log->holdHistory = true;
    history.begin(console.log->state->seq, false);
    history.begin(console.log->state->seq, false);
    ASSERT_EQ(console.log->held.size(), 2u);
    for (const auto& answer : console.log->held) answer();
    EXPECT_TRUE(QTest::qWaitFor([&] { return history.state() == EventHistory::State::kWhole; }));
    EXPECT_EQ(shown.size(), 1u);
}

TEST_F(Truth, TheLogReachesTheBeginningOfTheRunAPageAtATime) {
    console.log->history = test::SampleRun().events(60);
    console.log->pageSize = 40;
    EventHistory history(*console.session);
    std::vector<uint64_t> firsts;
    QObject::connect(&history, &EventHistory::page, [&](const std::vector<model::Event>& events) {
        firsts.push_back(events.front().seq);
    });
    history.begin(console.log->state->seq, false);
    ASSERT_TRUE(QTest::qWaitFor([&] { return history.state() == EventHistory::State::kWhole; }));
    EXPECT_GT(firsts.size(), 1u);
    EXPECT_EQ(firsts.back(), 1u);
    history.begin(console.log->state->seq, true);
    ASSERT_TRUE(QTest::qWaitFor([&] { return history.state() == EventHistory::State::kMore; }));
    const size_t before = firsts.size();
    history.more();
    ASSERT_TRUE(QTest::qWaitFor([&] { return history.state() != EventHistory::State::kReading; }));
    EXPECT_EQ(firsts.size(), before + 1);
}

TEST_F(Truth, ARunThatHasEndedStaysAsItEnded) {
    model::Event end;
    end.seq = console.feed.state().seq + 1;
    end.timeNs = console.feed.state().lastEventNs + 1;
    end.body = model::RunFinished{true, "all steps are done", 60};
    console.send({end});
    console.log->jobs.onDisconnected(lostFailure(), steady_clock::now() + seconds(30));
    ASSERT_TRUE(
        QTest::qWaitFor([&] { return console.session->status().link == Link::kReconnecting; }));
    QTest::qWait(600);
    EXPECT_FALSE(console.session->status().unknown);
    EXPECT_TRUE(figure("Job").contains("Finished"));
}

}  // namespace
}  // namespace bulkhead::ui
