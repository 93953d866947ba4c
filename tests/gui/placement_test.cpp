// SPDX-License-Identifier: GPL-3.0-only
#include <gmock/gmock.h>

#include <QDragEnterEvent>
#include <QFile>
#include <QLabel>
#include <QMenu>
#include <QMimeData>
#include <QProgressBar>
#include <QPushButton>
#include <QSpinBox>
#include <QTabWidget>
#include <QTableView>
#include <QTest>

#include "app/models/units.h"
#include "app/views/placement_view.h"
#include "app/widgets/file_drag.h"
#include "app/widgets/placement_board.h"
#include "app/widgets/scatter_chart.h"
#include "tests/app/support/console.h"

/// The Placement page in the real window: proposed, looked at, asked for through the seam, applied,
/// rolled back; and chips moved by hand.
namespace bulkhead::ui {
namespace {

using testing::HasSubstr;

QByteArray read(const QString& path) {
    QFile file(path);
    return file.open(QIODevice::ReadOnly) ? file.readAll() : QByteArray();
}

class PlacementPage : public testing::Test {
  protected:
    PlacementPage() { console.confirmer.answer = 0; }
    void open(int steps = 60) {
        console.goLive(steps);
        console.press("Ctrl+9");
    }
    template <class W>
    W* named(const QString& name) {
        auto* widget = qobject_cast<W*>(console.named(name, &console.view<PlacementView>()));
        EXPECT_NE(widget, nullptr) << qPrintable(name);
        return widget;
    }
    /// Also while a bar is shown in its place.
    QLabel* proposed() {
        for (QLabel* label : console.view<PlacementView>().findChildren<QLabel*>())
            if (label->accessibleName() == "What is proposed") return label;
        return nullptr;
    }
    QString words() { return proposed()->text(); }
    QString gain(int row, int column) {
        return named<QTableView>("Now beside what is proposed")
            ->model()
            ->index(row, column)
            .data()
            .toString();
    }
    bool enabled(const char* id) { return console.actions.find(id)->isEnabled(); }
    bool said(const QString& what) {
        return QTest::qWaitFor([&] { return words().contains(what); });
    }

    test::Console console;
};

TEST_F(PlacementPage, APlanIsProposedLookedAtAskedForAndApplied) {
    open();
    EXPECT_FALSE(enabled("placement.apply"));
    EXPECT_EQ(gain(1, 2), noFigure());
    console.press("Ctrl+Shift+M");
    ASSERT_TRUE(said("Proposed by the planner.")) << qPrintable(words());
    EXPECT_NE(gain(1, 2), noFigure());
    EXPECT_TRUE(gain(1, 3).contains(" to ")) << qPrintable(gain(1, 3));
    EXPECT_NE(gain(1, 4), noFigure()) << "and as counted";
    EXPECT_TRUE(gain(1, 5).startsWith(QChar(0x2212))) << "fewer remote copies";
    EXPECT_TRUE(console.log->actions.empty()) << "looking changes nothing";
    ASSERT_TRUE(enabled("placement.apply"));

    console.log->preflight.title = "Move experts between shards";
    console.log->preflight.effect = "Every replica moves some.";
    console.log->preflight.revision = 11;
    const QString before = gain(1, 1);
    const QString after = gain(1, 2);
    console.press("Ctrl+Shift+Y");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 1; }));
    ASSERT_EQ(console.confirmer.asked.size(), 1u);
    const ConfirmRequest& request = console.confirmer.asked[0];
    EXPECT_EQ(request.effect, "Every replica moves some.");
    EXPECT_EQ(request.figures[0].name, "Remote copies, expected");
    EXPECT_EQ(request.figures[0].before, before);
    EXPECT_EQ(request.figures[0].after, after);
    const model::Action action = console.log->actions[0];
    EXPECT_EQ(action.kind, model::ActionKind::kChangeLayout);
    EXPECT_EQ(action.expertShard.size(), 96u);
    EXPECT_EQ(action.domainShare.size(), 8u);
    EXPECT_GT(action.predictedRemote, 0);
    EXPECT_EQ(console.log->revisions.back(), 11u);

    console.send({console.run.moveExperts(action)});
    EXPECT_TRUE(said("Placement applied (layout 1)"));
    EXPECT_FALSE(enabled("placement.apply"));
    console.press("Ctrl+Shift+Z");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 2; }));
    EXPECT_EQ(console.log->actions[1].expertShard, console.feed.state().model.expertShard);
    EXPECT_TRUE(console.log->actions[1].domainShare.empty());
    EXPECT_TRUE(said("Back to before the last move."));
}

TEST_F(PlacementPage, ALongSearchShowsItsBarAndCanBeStopped) {
    constexpr int kPatienceMs = 60'000;
    open();
    auto* effort = named<QSpinBox>("How long to search, 1 is usual");
    effort->setValue(effort->maximum());
    const auto bar = [&] {
        return qobject_cast<QProgressBar*>(
            console.named("Plans that were made, of those to be made"));
    };
    EXPECT_EQ(bar(), nullptr);
    EXPECT_FALSE(enabled("placement.stop"));
    console.press("Ctrl+Shift+M");
    ASSERT_TRUE(
        QTest::qWaitFor([&] { return bar() != nullptr && bar()->maximum() > 0; }, kPatienceMs));
    EXPECT_FALSE(proposed()->isVisible());
    ASSERT_TRUE(enabled("placement.stop"));
    console.press("Ctrl+Alt+M");
    ASSERT_TRUE(QTest::qWaitFor([&] { return bar() == nullptr; }, kPatienceMs));
    EXPECT_TRUE(proposed()->isVisible());
    EXPECT_FALSE(enabled("placement.stop"));
}

TEST_F(PlacementPage, WhoCancelsHasDoneNothingAndStillSeesTheProposal) {
    open();
    console.confirmer.answer = Confirmer::kCancelled;
    console.press("Ctrl+Shift+M");
    ASSERT_TRUE(said("Proposed by the planner."));
    console.press("Ctrl+Shift+Y");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.confirmer.asked.size() == 1; }));
    EXPECT_TRUE(console.log->actions.empty());
    EXPECT_TRUE(enabled("placement.apply"));
    console.press("Ctrl+Shift+H");
    EXPECT_TRUE(said("Nothing is proposed."));
    EXPECT_FALSE(enabled("placement.apply"));
}

TEST_F(PlacementPage, AChipIsDraggedToAnotherShardOrMovedByKeys) {
    open();
    auto* board = named<PlacementBoard>("Experts on their shards");
    const QPoint from = board->chipRect(2).center();
    const QPoint to = board->rowRect(1).center();
    QTest::mousePress(board, Qt::LeftButton, {}, from);
    QMouseEvent move(QEvent::MouseMove, to, board->mapToGlobal(to), Qt::NoButton, Qt::LeftButton,
                     Qt::NoModifier);
    QApplication::sendEvent(board, &move);
    QTest::mouseRelease(board, Qt::LeftButton, {}, to);
    EXPECT_TRUE(said("Moved by hand. 1 of 96 experts move")) << qPrintable(words());
    EXPECT_TRUE(board->rowRect(1).contains(board->chipRect(2)));
    EXPECT_TRUE(enabled("placement.apply"));
    EXPECT_TRUE(board->accessibleDescription().contains("from shard 0 to shard 1"))
        << qPrintable(board->accessibleDescription());
    board->setFocus();
    QTest::keyClick(board, Qt::Key_Up, Qt::ShiftModifier);
    EXPECT_TRUE(said("Nothing is proposed."));
    QTest::keyClick(board, Qt::Key_Right);
    EXPECT_EQ(board->current(), 3);
    QTest::keyClick(board, Qt::Key_Down);
    const int below = board->current();
    EXPECT_TRUE(board->rowRect(1).contains(board->chipRect(below)));
    auto* table = named<QTableView>("Experts of the layer");
    EXPECT_EQ(table->currentIndex().row(), below) << "the table goes along";
}

TEST_F(PlacementPage, AnotherPlanIsChosenInTheTableOfPlans) {
    open();
    console.press("Ctrl+Shift+M");
    ASSERT_TRUE(said("Proposed by the planner."));
    auto* tabs = console.view<PlacementView>().findChild<QTabWidget*>();
    tabs->setCurrentIndex(2);
    console.settle();
    EXPECT_TRUE(named<QLabel>("Why one is recommended")->text().contains("remote copies"));
    auto* table = named<QTableView>("Plans to choose from, in figures");
    table->setFocus();
    const int recommended = table->currentIndex().row();
    ASSERT_GT(recommended, 0);
    table->selectRow(0);
    EXPECT_TRUE(said("nothing would move")) << qPrintable(words());
    EXPECT_FALSE(enabled("placement.apply"));
    auto* chart = named<ScatterChart>("Plans to choose from");
    EXPECT_EQ(chart->chosen(), 0);
    chart->setFocus();
    QTest::mouseClick(chart, Qt::LeftButton, {}, chart->placeOf(recommended).toPoint());
    EXPECT_EQ(table->currentIndex().row(), recommended);
    EXPECT_TRUE(enabled("placement.apply"));
    QTest::keyClick(chart, Qt::Key_Right);
    EXPECT_NE(table->currentIndex().row(), recommended);
}

TEST_F(PlacementPage, APlanGoesToAFileAndIsDroppedBackOntoThePage) {
    open();
    console.press("Ctrl+Shift+M");
    ASSERT_TRUE(said("Proposed by the planner."));
    const QString remote = gain(1, 2);
    auto& page = console.view<PlacementView>();
    const QString path = console.folder.filePath("plan.json");
    page.exportTo(path, planner::Engine::kBulkhead);
    EXPECT_TRUE(console.says("Placement written to"));
    // Dragged away by its button, it is the same file.
    const auto* drag = console.window->findChild<FileDrag*>();
    ASSERT_NE(drag, nullptr);
    const auto dragged = drag->data();
    ASSERT_NE(dragged, nullptr);
    EXPECT_EQ(read(dragged->urls().value(0).toLocalFile()), read(path));
    EXPECT_FALSE(read(path).isEmpty());
    console.press("Ctrl+Shift+H");
    ASSERT_TRUE(said("Nothing is proposed."));
    QDragEnterEvent enter({10, 10}, Qt::CopyAction, dragged.get(), Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(&page, &enter);
    EXPECT_TRUE(enter.isAccepted());
    QDropEvent drop({10, 10}, Qt::CopyAction, dragged.get(), Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(&page, &drop);
    ASSERT_TRUE(said("Proposed by a file.")) << qPrintable(words());
    EXPECT_EQ(gain(1, 2), remote);

    for (const auto engine :
         {planner::Engine::kSglang, planner::Engine::kTrtllm, planner::Engine::kAscend}) {
        const QString other = console.folder.filePath("engine.txt");
        page.exportTo(other, engine);
        QFile file(other);
        ASSERT_TRUE(file.open(QIODevice::ReadOnly)) << static_cast<int>(engine);
        EXPECT_GT(file.size(), 100);
        ASSERT_TRUE(file.remove());
    }
    page.exportTo(console.folder.filePath("no/such/plan.json"), planner::Engine::kBulkhead);
    EXPECT_TRUE(console.says("Cannot export the placement"));
}

TEST_F(PlacementPage, WhatIsNoPlanIsRefusedWithItsReason) {
    open();
    const QString path = console.folder.filePath("broken.json");
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write("{\"format\": \"bulkhead.plan\"");
    file.close();
    console.view<PlacementView>().importFrom(path);
    EXPECT_TRUE(said("No plan: broken.json")) << qPrintable(words());
    console.view<PlacementView>().importFrom(console.folder.filePath("none.json"));
    EXPECT_TRUE(said("none.json: No such file")) << qPrintable(words());
}

TEST_F(PlacementPage, AnExpertIsPinnedForbiddenAndFreed) {
    open();
    auto* board = named<PlacementBoard>("Experts on their shards");
    board->setCurrent(2);
    console.press("Ctrl+Alt+P");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 1; }));
    EXPECT_TRUE(console.confirmer.asked.empty()) << "nothing moves, so nobody asks";
    model::Action action = console.log->actions.back();
    EXPECT_EQ(action.kind, model::ActionKind::kRuleExperts);
    EXPECT_EQ(action.rules, (std::vector<model::ExpertRule>{{0, 2, 0, true}}));
    console.send({console.run.done(action)});
    EXPECT_TRUE(board->accessibleDescription().endsWith(", pinned to shard 0"))
        << qPrintable(board->accessibleDescription());

    Q_EMIT board->moved(2, 1);
    EXPECT_TRUE(console.says("expert 2, is pinned to shard 0: Free it first."));
    EXPECT_TRUE(said("Nothing is proposed."));
    console.press("Ctrl+Shift+M");
    ASSERT_TRUE(said("Proposed by the planner."));
    EXPECT_TRUE(board->rowRect(0).contains(board->chipRect(2))) << "the planner keeps it there";

    Q_EMIT board->ruled(2, 0, false);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 2; }));
    action = console.log->actions.back();
    EXPECT_EQ(action.rules, (std::vector<model::ExpertRule>{{0, 2, 0, false}})) << "no more pinned";
    console.send({console.run.done(action)});
    EXPECT_TRUE(board->accessibleDescription().contains("forbidden on shard 0, which is not so"));
    console.press("Ctrl+Shift+M");
    ASSERT_TRUE(QTest::qWaitFor([&] { return board->rowRect(1).contains(board->chipRect(2)); }));

    auto* tabs = console.view<PlacementView>().findChild<QTabWidget*>();
    tabs->setCurrentIndex(4);
    EXPECT_EQ(tabs->tabText(4), "Pinned and forbidden (1)");
    auto* table = named<QTableView>("Pinned and forbidden experts");
    EXPECT_EQ(table->model()->index(0, 2).data().toString(), "forbidden on shard 0");
    EXPECT_EQ(table->model()->index(0, 4).data().toString(), "kept");
    board->setCurrent(5);
    table->selectRow(0);
    EXPECT_EQ(board->current(), 2) << "the board goes along";
    console.press("Ctrl+Alt+U");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 3; }));
    EXPECT_TRUE(console.log->actions.back().rules.empty());
    console.send({console.run.done(console.log->actions.back())});
    EXPECT_TRUE(console.says("No expert is pinned or forbidden anywhere."));
}

TEST_F(PlacementPage, AChipsMenuMovesPinsForbidsAndFrees) {
    open();
    auto* board = named<PlacementBoard>("Experts on their shards");
    board->setCurrent(2);
    QContextMenuEvent byKey(QContextMenuEvent::Keyboard, {}, board->mapToGlobal(QPoint()));
    QApplication::sendEvent(board, &byKey);
    auto* menu = board->findChild<QMenu*>();
    ASSERT_NE(menu, nullptr);
    QStringList titles;
    for (const QAction* part : menu->actions()) titles << part->text();
    EXPECT_EQ(titles, (QStringList{"Move expert 2 to", "Pin expert 2 to", "Forbid expert 2 on",
                                   "Free expert 2"}));
    EXPECT_FALSE(menu->actions()[3]->isEnabled()) << "it is free";
    menu->actions()[1]->menu()->actions()[1]->trigger();
    menu->close();
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 1; }));
    EXPECT_EQ(console.log->actions[0].rules, (std::vector<model::ExpertRule>{{0, 2, 1, true}}));
}

TEST_F(PlacementPage, APlanThatTheBackendProposedIsSeenLookedAtAndDismissed) {
    open();
    console.press("Ctrl+Shift+M");
    ASSERT_TRUE(said("Proposed by the planner."));
    console.press("Ctrl+Shift+Y");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 1; }));
    const model::Action layout = console.log->actions[0];
    console.press("Ctrl+Shift+H");
    console.press("Ctrl+1");
    EXPECT_EQ(console.named("Plan ready for review"), nullptr);
    EXPECT_FALSE(enabled("placement.waiting"));

    const auto proposed = console.run.propose(layout, "51.0 % of copies leave their shard");
    console.send({proposed});
    auto* badge = qobject_cast<QPushButton*>(console.named("Plan ready for review"));
    ASSERT_NE(badge, nullptr) << "seen from any page";
    badge->click();
    console.settle();
    EXPECT_TRUE(console.says("Routing has drifted: a plan was proposed after step"));
    EXPECT_TRUE(console.says("51.0 % of copies leave their shard. It would move 12 of 96 experts"));
    ASSERT_TRUE(said("This is what is in use."));
    console.press("Ctrl+Alt+O");
    ASSERT_TRUE(said("Proposed when routing drifted."));
    EXPECT_FALSE(enabled("placement.waiting")) << "it is looked at";
    console.press("Ctrl+Shift+Y");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 2; }));
    EXPECT_EQ(console.confirmer.asked.size(), 2u) << "applied behind the question";
    EXPECT_EQ(console.log->actions[1].expertShard, layout.expertShard);

    console.press("Ctrl+Alt+X");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 3; }));
    EXPECT_EQ(console.log->actions[2].kind, model::ActionKind::kDismissPlan);
    EXPECT_EQ(console.log->actions[2].step, std::get<model::PlanProposed>(proposed.body).step);
    console.send({console.run.done(console.log->actions[2])});
    EXPECT_FALSE(console.says("Routing has drifted"));
    EXPECT_EQ(console.named("Plan ready for review"), nullptr);
}

TEST_F(PlacementPage, AModelWithoutExpertsIsToldThereIsNothingToPlan) {
    console.goLive(1);
    console.press("Ctrl+9");
    EXPECT_TRUE(console.says("Nothing to plan"));
    EXPECT_TRUE(console.says("No expert has been counted yet"));
    console.press("Ctrl+Shift+M");
    EXPECT_TRUE(console.log->actions.empty());
}

}  // namespace
}  // namespace bulkhead::ui
