// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QPushButton>
#include <QTableView>
#include <QTest>
#include <QTimer>

#include "app/models/message_log.h"
#include "app/views/incidents_view.h"
#include "app/views/messages_dialog.h"
#include "app/views/status_strip.h"
#include "app/widgets/incident_bars.h"
#include "app/widgets/incident_panel.h"
#include "app/widgets/lane_timeline.h"
#include "tests/app/support/console.h"

/// The Incidents view: problems, their remedies, and the console's actions.
namespace bulkhead::ui {
namespace {

model::Event paused(test::Console& console) {
    model::Event event;
    event.seq = console.feed.state().seq + 1;
    event.timeNs = console.feed.state().lastEventNs + 1;
    event.body = model::JobPhaseChanged{model::JobPhase::kPaused, "paused by anna"};
    return event;
}

TEST(Incidents, TheStripLeadsFromAnOpenIncidentToItsCard) {
    test::Console console(46);
    auto* button =
        qobject_cast<QPushButton*>(console.named(QStringLiteral("What is wrong and what to do")));
    ASSERT_NE(button, nullptr);
    EXPECT_EQ(button->text(), QStringLiteral("1 problem: what to do"));
    button->click();
    auto& page = console.view<IncidentsView>();
    ASSERT_TRUE(QTest::qWaitFor([&] { return page.isVisible(); }));
    EXPECT_TRUE(console.says("Replica 2 fetches the state"));
    EXPECT_TRUE(console.says("this run has no recovery to go by yet"));
    EXPECT_TRUE(console.says("1 open, 0 over"));
    EXPECT_FALSE(console.named(QStringLiteral("Take the advice"), &page))
        << "there is nothing to do";
}

TEST(Incidents, MoneyComesFromThePriceThatTheProgramWasGiven) {
    qputenv(model::Prices::kGpuHourVariable, "1");
    const auto costs = [](model::Prices prices) {
        test::Console console(60, {}, nullptr, prices);
        console.press("Alt+1");
        return console.says(" 0.00 EUR");
    };
    EXPECT_TRUE(costs({3, "EUR"}));
    EXPECT_FALSE(costs({})) << "no page reads the environment";
    qunsetenv(model::Prices::kGpuHourVariable);
}

TEST(Incidents, TheBarsOfSurvivorsAddUpToWhatTheCardSays) {
    test::Console console(60);
    console.press("Alt+1");
    EXPECT_TRUE(console.says("The others stood still for 46 ms, then exchanged again for 72 ms."));
    const auto* bars = console.view<IncidentsView>().findChild<IncidentBars*>();
    ASSERT_NE(bars, nullptr);
    EXPECT_TRUE(bars->accessibleDescription().startsWith(
        QStringLiteral("Survivors: stood still 46\u202fms (Detect 4\u202fms, Decide "
                       "3\u202fms, Re-form 39\u202fms, then Re-exchange 72\u202fms); r2: ")));
}

TEST(Incidents, ARunInOrderHasNoProblemInTheStrip) {
    test::Console console(30);
    EXPECT_EQ(console.named(QStringLiteral("What is wrong and what to do")), nullptr);
    console.press("Alt+1");
    EXPECT_TRUE(console.says("Nothing is wrong"));
}

TEST(Incidents, ChoosingOneFramesItOnEveryPage) {
    test::Console console(105);
    auto* lanes = console.window->findChild<LaneTimeline*>();
    ASSERT_TRUE(lanes->following());
    console.press("Alt+1");
    console.press("Alt+Down");
    const auto frame = console.cursor.frame();
    ASSERT_TRUE(frame);
    EXPECT_NE(frame->incident, 0u);
    EXPECT_FALSE(lanes->following());
    EXPECT_LT(lanes->beginNs(), frame->beginNs);
    EXPECT_GT(lanes->endNs(), frame->endNs);
    EXPECT_EQ(console.cursor.at(), frame->beginNs);
    auto* fleet = qobject_cast<QAbstractItemView*>(
        console.named(QStringLiteral("Replicas, ranks and nodes")));
    ASSERT_NE(fleet, nullptr);
    EXPECT_EQ(fleet->currentIndex().siblingAtColumn(0).data().toString(),
              QStringLiteral("Replica %1").arg(frame->replica));
    console.press("Alt+Up");
    EXPECT_NE(console.cursor.frame()->incident, frame->incident);
    console.press("Ctrl+0");
    EXPECT_FALSE(console.cursor.frame());
    EXPECT_TRUE(lanes->following());
}

TEST(Incidents, TheAdviceIsPreviewedAskedForAndTaken) {
    test::Console console(20);
    console.log->preflight.title = "Resume the job";
    console.log->preflight.effect = "Training goes on with the next step.";
    console.confirmer.answer = 0;
    console.send({paused(console)});
    console.press("Alt+1");
    ASSERT_TRUE(
        QTest::qWaitFor([&] { return console.says("Training goes on with the next step."); }));
    auto* act = qobject_cast<QPushButton*>(console.named(QStringLiteral("Take the advice")));
    ASSERT_NE(act, nullptr);
    EXPECT_TRUE(act->isEnabled());
    act->click();
    ASSERT_TRUE(QTest::qWaitFor([&] { return !console.log->actions.empty(); }));
    EXPECT_EQ(console.log->actions[0].kind, model::ActionKind::kResume);
    EXPECT_EQ(console.confirmer.asked.size(), 1u);
}

TEST(Messages, GoFromTheScreenAndStayInTheList) {
    test::Console console(10);
    StatusStrip& strip = console.window->strip();
    strip.say("Written to /tmp/x", Tone::kNeutral);
    strip.say("The disk is full", Tone::kBad);
    EXPECT_TRUE(console.says("The disk is full"));
    strip.findChild<QTimer*>(QStringLiteral("expiry"))->start(1);
    EXPECT_TRUE(QTest::qWaitFor([&] { return !console.says("The disk is full"); }));
    console.press("F8");
    auto* dialog = console.window->findChild<MessagesDialog*>();
    ASSERT_NE(dialog, nullptr);
    const auto* rows = dialog->findChild<QTableView*>()->model();
    ASSERT_EQ(rows->rowCount(), 2);
    EXPECT_EQ(rows->index(0, MessageLog::kText).data().toString(),
              QStringLiteral("The disk is full"));
}

TEST(Messages, FollowTheTheme) {
    test::Console console(10);
    StatusStrip& strip = console.window->strip();
    strip.say("The disk is full", Tone::kBad);
    for (const Scheme scheme : {Scheme::kLight, Scheme::kDark}) {
        theme().setScheme(scheme);
        EXPECT_TRUE(console.says(theme().tokens().of(Tone::kBad).name()))
            << "the message has the colour of the other theme";
    }
}

}  // namespace
}  // namespace bulkhead::ui
