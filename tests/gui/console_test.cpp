// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QAbstractButton>
#include <QAbstractItemView>
#include <QComboBox>
#include <QDockWidget>
#include <QLabel>
#include <QLineEdit>
#include <QListWidget>
#include <QTest>
#include <QTreeView>

#include "app/views/dock_layout.h"
#include "app/views/faults_view.h"
#include "app/views/fleet_view.h"
#include "app/views/job_commands.h"
#include "app/views/replay_bar.h"
#include "app/views/status_strip.h"
#include "app/widgets/command_palette.h"
#include "app/widgets/confirm.h"
#include "tests/app/support/console.h"

namespace bulkhead::ui {
namespace {

TEST(Console, NoTwoActionsShareAShortcut) {
    test::Console console;
    EXPECT_TRUE(console.actions.conflicts().isEmpty())
        << qPrintable(console.actions.conflicts().join("; "));
}

TEST(Console, ConflictsAreFoundWhenThereAreSome) {
    ActionRegistry registry;
    registry.add("a", "X", "A", "", QKeySequence("Ctrl+Y"), [] {});
    registry.add("b", "X", "B", "", QKeySequence("Ctrl+Y"), [] {});
    ASSERT_EQ(registry.conflicts().size(), 1);
    EXPECT_TRUE(registry.conflicts()[0].contains("a and b"));
}

TEST(Console, EveryActionSaysWhatItDoesAndHasKeys) {
    test::Console console;
    for (const auto& entry : console.actions.entries()) {
        EXPECT_FALSE(entry.hint.isEmpty()) << qPrintable(entry.id);
        // One of ten policies is found by its name; the dialog of all has keys.
        EXPECT_TRUE(entry.id.startsWith("job.policy.") || !entry.action->shortcut().isEmpty())
            << qPrintable(entry.id);
    }
}

TEST(Console, WhatTakesTheKeyboardHasAName) {
    test::Console console(60);
    QStringList nameless;
    for (QWidget* w : console.window->findChildren<QWidget*>()) {
        if (!(w->focusPolicy() & Qt::TabFocus) || w->objectName().startsWith("qt_")) continue;
        if (w->parentWidget() && (qobject_cast<QComboBox*>(w->parentWidget()) ||
                                  qobject_cast<QAbstractSpinBox*>(w->parentWidget()) ||
                                  w->parentWidget()->inherits("QComboBoxPrivateContainer")))
            continue;  // inner parts, named by their owner
        const auto* button = qobject_cast<QAbstractButton*>(w);
        if (w->accessibleName().isEmpty() && (button == nullptr || button->text().isEmpty()) &&
            !w->inherits("QTabBar") && !w->inherits("QScrollBar"))
            nameless << QString::fromLatin1(w->metaObject()->className()) + " in " +
                            QString::fromLatin1(w->parentWidget()->metaObject()->className());
    }
    EXPECT_TRUE(nameless.isEmpty()) << qPrintable(nameless.join("\n"));
}

TEST(Console, NumberKeysBringEachViewToTheFrontWithTheKeyboardInIt) {
    test::Console console(20);
    int number = 1;
    for (View* view : console.window->layout().views()) {
        console.press(
            qPrintable(QStringLiteral("%1+%2").arg(number < 10 ? "Ctrl" : "Alt").arg(number % 10)));
        ++number;
        EXPECT_TRUE(view->isVisible()) << qPrintable(view->id());
        EXPECT_EQ(console.window->layout().current(), view) << qPrintable(view->id());
    }
}

/// Counts what it does.
class CountedPage final : public View {
  public:
    using View::View;
    QWidget* focusTarget() override { return this; }
    int refreshes = 0;

  protected:
    void refresh() override { ++refreshes; }
};

TEST(Console, APageBehindAnotherDoesNothingUntilItsTabIsChosen) {
    test::Console console(5);
    QMainWindow window;
    JobCommands commands(*console.session, console.confirmer, &window);
    ViewContext context{console.feed,      console.cursor, *console.session, console.actions,
                        console.confirmer, commands,       *console.settings};
    auto* front = new CountedPage(context, "front", "Front");
    auto* behind = new CountedPage(context, "behind", "Behind");
    DockLayout docks(window);
    docks.add(front, Place::kRight);
    docks.add(behind, Place::kRight);
    docks.arrange();
    window.show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(&window));
    docks.raise(front);
    console.settle();
    const int seen = front->refreshes, unseen = behind->refreshes;
    console.send(console.run.nextStep());
    console.settle();
    EXPECT_GT(front->refreshes, seen);
    EXPECT_EQ(behind->refreshes, unseen);
    docks.raise(behind);
    EXPECT_TRUE(QTest::qWaitFor([&] { return behind->refreshes > unseen; }));
}

TEST(Console, PaletteFindsAnActionByAFewLettersAndRunsIt) {
    test::Console console(5);
    const Scheme before = theme().scheme();
    console.press("Ctrl+K");
    auto* palette = console.window->findChild<CommandPalette*>();
    ASSERT_NE(palette, nullptr);
    auto* input = palette->findChild<QLineEdit*>();
    QTest::keyClicks(input, "light or");
    QTest::keyClick(input, Qt::Key_Return);
    EXPECT_NE(theme().scheme(), before);
    theme().setScheme(before);
}

TEST(Console, PaletteLeavesOutWhatCannotBeDone) {
    test::Console console;  // nothing attached: no job to pause
    CommandPalette palette(console.actions, console.window.get());
    palette.findChild<QLineEdit*>()->setText("pause");
    for (int i = 0; i < palette.findChild<QListWidget*>()->count(); ++i)
        EXPECT_FALSE(palette.findChild<QListWidget*>()->item(i)->text().startsWith("Pause"));
}

TEST(Console, DrainingAsksAndDoesNothingWhenRefused) {
    test::Console console(20);
    console.log->preflight.title = "Drain replica 2";
    console.log->preflight.effect = "Replica 2 leaves after its current commit.";
    console.view<FleetView>().select(2);
    console.press("Ctrl+D");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.confirmer.asked.size() == 1; }));
    EXPECT_EQ(console.confirmer.asked[0].title, "Drain replica 2?");
    EXPECT_EQ(console.confirmer.asked[0].effect, "Replica 2 leaves after its current commit.");
    EXPECT_TRUE(console.confirmer.asked[0].destructive);
    console.settle();
    EXPECT_TRUE(console.log->actions.empty());
}

TEST(Console, DrainingGoesToTheRevisionThatWasLookedAt) {
    test::Console console(20);
    console.log->preflight.revision = 41;
    console.confirmer.answer = 0;
    console.view<FleetView>().select(2);
    console.press("Ctrl+D");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 1; }));
    EXPECT_EQ(console.log->actions[0].kind, model::ActionKind::kDrain);
    EXPECT_EQ(console.log->actions[0].replica, 2);
    EXPECT_EQ(console.log->revisions[0], 41u);
}

TEST(Console, ARefusedPreflightIsToldAndNothingIsAsked) {
    test::Console console(20);
    console.log->preflight.allowed = false;
    console.log->preflight.refusal = "Replica 2 is the last contributor; bring another back first.";
    console.view<FleetView>().select(2);
    console.press("Ctrl+D");
    auto* message = console.window->findChild<StatusStrip*>();
    ASSERT_TRUE(QTest::qWaitFor([&] {
        for (const QLabel* label : message->findChildren<QLabel*>())
            if (label->toolTip().contains("last contributor")) return true;
        return false;
    }));
    EXPECT_TRUE(console.confirmer.asked.empty());
}

TEST(Console, AFaultIsComposedAskedAndInjected) {
    test::Console console(20);
    console.confirmer.answer = 0;
    console.view<FaultsView>().aimAt(1, 1);
    console.press("Ctrl+I");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->faults.size() == 1; }));
    EXPECT_EQ(console.log->faults[0].kind, model::FaultKind::kKillRank);
    EXPECT_EQ(console.log->faults[0].replica, 1);
    EXPECT_EQ(console.log->faults[0].shard, 1);
    ASSERT_EQ(console.confirmer.asked.size(), 1u);
}

TEST(Console, TheStripSaysWhyAnythingWaits) {
    test::Console console(45);  // replica 2 catches up
    EXPECT_TRUE(console.window->strip().explanation().contains("r2"))
        << qPrintable(console.window->strip().explanation());
    model::RunState state;
    state.phase = model::JobPhase::kWaiting;
    state.explanation = "waiting for r3, last beat 1.2 s ago";
    EXPECT_TRUE(explain(state).words.contains("waiting for r3"));
    EXPECT_EQ(explain(state).tone, Tone::kWarning);
}

TEST(Console, AFailedGpuIsSaidUntilItsNodeIsSeenTo) {
    test::Console console(20);
    const auto told = [&](model::EventBody body, model::Severity severity) {
        model::Event event;
        event.seq = console.feed.state().seq + 1;
        event.timeNs = console.feed.state().lastEventNs;
        event.severity = severity;
        event.body = std::move(body);
        console.send({event});
    };
    model::FleetSampled fleet;
    fleet.nodes.resize(1);
    fleet.nodes[0].node = "node1";
    fleet.nodes[0].gpus.resize(1);
    fleet.nodes[0].gpus[0].temperatureCelsius = 61;
    told(fleet, model::Severity::kInfo);
    told(model::GpuTroubled{"node1", 0, "", 79, std::nullopt, 0, {{1, 0}}},
         model::Severity::kError);
    EXPECT_TRUE(console.window->strip().explanation().contains("GPU 0 of node1"))
        << qPrintable(console.window->strip().explanation());
    EXPECT_EQ(explain(console.feed.state()).tone, Tone::kBad);
    console.view<FleetView>().selectNode("node1");
    console.settle();
    EXPECT_TRUE(console.says("61\u00a0\u00b0C"));
    console.view<FleetView>().selectNode("node0");
    console.settle();
    EXPECT_TRUE(console.says("its agent has not said how it is")) << "why there are no figures";
    told(model::NodeChanged{"node1", "127.0.0.2", 4, model::NodeState::kCordoned, ""},
         model::Severity::kNotice);
    EXPECT_FALSE(console.window->strip().explanation().contains("GPU"));
}

TEST(Console, ReplicasOfVeryManyRanksAreOpenedWhenAsked) {
    test::Console console(3);
    console.view<FleetView>().choose(false);
    auto* tree = console.view<FleetView>().findChild<QTreeView*>();
    const auto isOpen = [&] { return tree->isExpanded(tree->model()->index(0, 0)); };
    EXPECT_TRUE(isOpen());
    const auto wide = std::make_shared<model::RunState>(*console.log->state);
    wide->ranks.clear();
    for (int32_t i = 0; i < 5000; ++i) wide->ranks.emplace_back().rank = {0, i};
    console.log->run.onSnapshot(wide);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.feed.state().ranks.size() == 5000; }));
    EXPECT_FALSE(isOpen());
    console.view<FleetView>().select(0, 4999);
    EXPECT_TRUE(isOpen());
}

TEST(Console, HiddenViewsDoNotFollowUntilTheyAreShown) {
    test::Console console(20);
    auto* fleet = &console.view<FleetView>();
    console.window->layout().dockOf(fleet)->hide();
    auto* tree = fleet->findChild<QTreeView*>();
    const QString before = tree->model()->index(0, 2).data().toString();
    console.send(console.run.nextStep());
    EXPECT_EQ(tree->model()->index(0, 2).data().toString(), before);
    console.window->layout().dockOf(fleet)->show();
    EXPECT_EQ(tree->model()->index(0, 2).data().toString(), "21");
}

TEST(Console, LayoutIsSavedWithItsVersionAndAForeignOneIsLeft) {
    test::Console console(3);
    console.window->layout().save(*console.settings);
    EXPECT_EQ(console.settings->value("window/layoutVersion").toInt(), DockLayout::kVersion);
    EXPECT_TRUE(console.window->layout().restore(*console.settings));
    console.settings->setValue("window/layoutVersion", DockLayout::kVersion + 1);
    EXPECT_FALSE(console.window->layout().restore(*console.settings));
}

TEST(Console, AReplaySaysThatItIsOne) {
    test::Console console(10);
    auto* bar = console.window->findChild<ReplayBar*>();
    EXPECT_TRUE(bar->isHidden());
    EXPECT_FALSE(console.actions.find("replay.play")->isEnabled());
    console.session->replayRun("demo-1");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.session->status().position.has_value(); }));
    ASSERT_EQ(console.log->orders.size(), 1u);
    EXPECT_EQ(console.log->orders[0].seekTimeNs, INT64_MAX) << "it opens at its end";
    EXPECT_FALSE(bar->isHidden());
    EXPECT_FALSE(console.session->status().canAct());
    EXPECT_EQ(console.log->watched->replay, "replay-1");
    model::ReplayPosition position;
    position.run = "demo-1";
    position.paused = true;
    position.step = 4;
    console.log->replay.onPosition(position);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.session->status().position->step == 4; }));
    console.press("Ctrl+Right");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->orders.size() == 2; }));
    EXPECT_EQ(console.log->orders.back().seekStep, 5u);
}

TEST(Console, AMoveOfAReplayThatFailsIsSaid) {
    test::Console console(10);
    console.session->replayRun("demo-1");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.session->status().replay; }));
    console.log->noMove = {client::FailureCode::kServer, "Cannot read the run",
                           "/runs.db: damaged (a page)", "Restore a copy.", false};
    console.press("Ctrl+Home");
    EXPECT_TRUE(QTest::qWaitFor(
        [&] { return console.says("/runs.db: damaged (a page). Restore a copy."); }));
    EXPECT_TRUE(console.session->status().replay) << "what is on screen stays";
    EXPECT_TRUE(console.feed.hasRun());
}

TEST(Console, ARunThatIsReadShowsItsProgressAndLeavesTheScreenAloneUntilItsEnd) {
    test::Console console(10);
    console.log->holdOrders = true;
    console.session->replayRun("demo-1");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->orders.size() == 1; }));
    EXPECT_FALSE(console.session->status().replay);
    console.send(console.run.nextStep());
    EXPECT_EQ(console.feed.state().lastCommit->record.step, 11u) << "the live job goes on there";
    model::ReplayPosition position;
    position.run = "demo-1";
    position.loading = 0.25;
    console.log->replay.onPosition(position);
    ASSERT_TRUE(QTest::qWaitFor([&] {
        const auto& opening = console.session->status().opening;
        return opening && opening->share == 0.25;
    }));
    EXPECT_TRUE(console.says("Reading demo-1"));
    EXPECT_TRUE(console.actions.find("replay.leave")->isEnabled());
    for (const auto& answer : console.log->held) answer();
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.session->status().replay; }));
    EXPECT_FALSE(console.session->status().opening);
    EXPECT_EQ(console.feed.state().lastCommit->record.step, 10u);
}

TEST(Console, ARunThatIsReadCanBeCancelledAndTheLiveJobWasNeverLeft) {
    test::Console console(10);
    console.log->holdOrders = true;
    console.session->replayRun("demo-1");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->orders.size() == 1; }));
    console.press("Ctrl+Shift+L");
    EXPECT_FALSE(console.session->status().opening);
    EXPECT_EQ(console.log->closedReplays, std::vector<std::string>{"replay-1"});
    for (const auto& answer : console.log->held) answer();
    console.send(console.run.nextStep());
    EXPECT_EQ(console.feed.state().lastCommit->record.step, 11u);
    EXPECT_FALSE(console.session->status().replay);
    EXPECT_TRUE(console.session->status().canAct());
}

TEST(Console, ARunThatCannotBeReadLeavesTheLiveJobOnScreen) {
    test::Console console(10);
    console.log->noMove = {client::FailureCode::kServer, "Cannot read the run",
                           "/runs.db: damaged (a page)", "Restore a copy.", false};
    console.session->replayRun("demo-1");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.says("Restore a copy."); }));
    EXPECT_FALSE(console.session->status().opening);
    EXPECT_TRUE(console.session->status().canAct());
    console.send(console.run.nextStep());
    EXPECT_EQ(console.feed.state().lastCommit->record.step, 11u);
}

TEST(Console, TheTimeCursorStaysUntilAnEventIsChosen) {
    test::Console console(10);
    console.press("Ctrl+7");
    auto* table = qobject_cast<QAbstractItemView*>(QApplication::focusWidget());
    ASSERT_NE(table, nullptr);
    ASSERT_EQ(table->accessibleName(), "Events");
    EXPECT_FALSE(console.cursor.at().has_value());
    QTest::keyClick(table, Qt::Key_Down);
    EXPECT_TRUE(console.cursor.at().has_value());
}

TEST(Console, DeedsNeedTheTypedNameWhenOneIsAskedFor) {
    ConfirmRequest request;
    request.title = "Stop the run demo";
    request.choices = QStringList{"Stop"};
    request.typedName = "demo";
    ConfirmDialog dialog(request, nullptr);
    QAbstractButton* deed = nullptr;
    for (auto* button : dialog.findChildren<QAbstractButton*>())
        if (button->text() == "Stop") deed = button;
    ASSERT_NE(deed, nullptr);
    EXPECT_FALSE(deed->isEnabled());
    dialog.findChild<QLineEdit*>()->setText("demo");
    EXPECT_TRUE(deed->isEnabled());
    deed->click();
    EXPECT_EQ(dialog.choice(), 0);
}

TEST(Console, EmptyPlacesSayWhatToDo) {
    test::Console console;
    bool told = false;
    for (const QLabel* label : console.view<FleetView>().findChildren<QLabel*>())
        told = told || (label->isVisible() && label->text().contains("Start the demo"));
    EXPECT_TRUE(told);
}

}  // namespace
}  // namespace bulkhead::ui
