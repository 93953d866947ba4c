// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QAccessible>
#include <QComboBox>
#include <QLabel>
#include <QLineEdit>
#include <QTest>
#include <QToolButton>
#include <QTreeView>
#include <QWheelEvent>

#include "app/models/roles.h"
#include "app/views/fleet_map_panel.h"
#include "app/views/fleet_view.h"
#include "app/widgets/fleet_map.h"
#include "tests/app/support/console.h"
#include "tests/app/support/made_fleet.h"

namespace bulkhead::ui {
namespace {

class MapPage : public testing::Test {
  protected:
    void show(test::FleetSize size) {
        if (!console.feed.hasRun()) console.goLive(3);
        auto state = std::make_shared<model::RunState>(test::madeFleet(size));
        state->seq = console.feed.state().seq + 1;
        console.log->run.onSnapshot(state);
        ASSERT_TRUE(QTest::qWaitFor(
            [&] { return console.feed.state().ranks.size() == state->ranks.size(); }));
        ASSERT_TRUE(
            QTest::qWaitFor([&] { return map().shape().ranks.size() == state->ranks.size(); }));
        console.window->layout().toggleOnly(&fleet());
        console.settle();
    }
    FleetView& fleet() { return console.view<FleetView>(); }
    FleetMap& map() { return fleet().mapPanel().map(); }
    void key(Qt::Key key, Qt::KeyboardModifiers modifiers = Qt::NoModifier) {
        QTest::keyClick(&map(), key, modifiers);
    }
    template <class W>
    W* named(const char* name) {
        return qobject_cast<W*>(console.named(QString::fromUtf8(name)));
    }

    test::Console console;
};

TEST_F(MapPage, ALargeFleetIsAMapASmallOneATableAndTheChoiceIsKept) {
    console.goLive(3);
    EXPECT_FALSE(fleet().showsMap());
    show({4, 64, 8});
    EXPECT_TRUE(fleet().showsMap());
    console.press("Ctrl+Alt+B");
    EXPECT_FALSE(fleet().showsMap());
    EXPECT_TRUE(console.actions.find("fleet.table")->isChecked());
    EXPECT_FALSE(console.actions.find("fleet.map")->isChecked());
    const test::Console next(3, {}, &console);
    EXPECT_EQ(next.settings->value("fleet/shown"), "table");
    console.press("Ctrl+B");
    EXPECT_TRUE(fleet().showsMap());
}

TEST_F(MapPage, TheMapAndTheTableHaveOneSelection) {
    show({4, 64, 8});
    const QRect cell = map().cellOf({2, 17});
    QTest::mouseClick(&map(), Qt::LeftButton, {}, cell.center());
    EXPECT_EQ(fleet().selectedReplica(), 2);
    EXPECT_EQ(fleet().selectedShard(), 17);
    EXPECT_EQ(fleet().selectedNode(), "gpu-00018");
    EXPECT_TRUE(console.says("Replica 2"));
    console.press("Ctrl+Alt+B");
    auto* tree = fleet().findChild<QTreeView*>();
    EXPECT_EQ(tree->currentIndex().data(kShardRole).toInt(), 17);
    tree->setFocus();
    QTest::keyClick(tree, Qt::Key_Down);
    EXPECT_EQ(fleet().selectedShard(), 18);
    console.press("Ctrl+B");
    EXPECT_TRUE(map().accessibleDescription().startsWith("r2s18,"))
        << qPrintable(map().accessibleDescription());
    fleet().selectNode("gpu-00003");
    EXPECT_EQ(map().accessibleDescription(), "gpu-00003");
}

TEST_F(MapPage, ItIsWalkedZoomedAndLeftByKeys) {
    show({4, 64, 8});
    fleet().select(0, 0);
    map().setFocus();
    key(Qt::Key_Right);
    EXPECT_EQ(fleet().selectedShard(), 1);
    EXPECT_TRUE(map().accessibleDescription().startsWith("r0s1, gpu-00000, Late"))
        << qPrintable(map().accessibleDescription());
    for (int i = 0; i < 200 && fleet().selectedReplica() == 0; ++i) key(Qt::Key_Right);
    EXPECT_EQ(fleet().selectedReplica(), 1) << "over the edge of a block into the next";
    fleet().select(0, 1);
    key(Qt::Key_Plus);
    EXPECT_EQ(map().level(), 1);
    key(Qt::Key_Return);
    const int close = map().level();
    EXPECT_GE(close, 1);
    EXPECT_TRUE(map().rect().contains(map().cellOf({0, 1})));
    key(Qt::Key_Return);
    EXPECT_GT(map().level(), close) << "from the replica to the node";
    const QPoint before = map().offset();
    key(Qt::Key_Right, Qt::ShiftModifier);
    key(Qt::Key_Down, Qt::ShiftModifier);
    EXPECT_NE(map().offset(), before);
    key(Qt::Key_Minus);
    key(Qt::Key_Home);
    EXPECT_EQ(map().level(), 0);
    EXPECT_EQ(map().offset(), QPoint());
}

TEST_F(MapPage, TheCurrentRankStaysInSightAsItMoves) {
    show({4, 64, 8});
    fleet().select(0, 0);
    while (map().level() < map().layoutOfMap().levels() - 1) key(Qt::Key_Plus);
    for (int i = 0; i < 6; ++i) {
        key(Qt::Key_Right);
        const RankId rank{fleet().selectedReplica(), fleet().selectedShard()};
        EXPECT_TRUE(map().rect().contains(map().cellOf(rank))) << i;
    }
}

TEST_F(MapPage, TheWheelZoomsAboutTheCellBelowItAndDraggingPans) {
    show({4, 64, 8});
    const QPoint at = map().cellOf({3, 40}).center();
    for (int i = 0; i < 4; ++i) {
        QWheelEvent wheel(at, map().mapToGlobal(at), {}, {0, 120}, Qt::NoButton, Qt::NoModifier,
                          Qt::NoScrollPhase, false);
        QApplication::sendEvent(&map(), &wheel);
    }
    EXPECT_EQ(map().level(), 4);
    EXPECT_TRUE(map().cellOf({3, 40}).adjusted(-8, -8, 8, 8).contains(at));
    const QPoint before = map().offset();
    const int replica = fleet().selectedReplica();
    QTest::mousePress(&map(), Qt::LeftButton, {}, {300, 200});
    QTest::mouseMove(&map(), {340, 230});
    QTest::mouseRelease(&map(), Qt::LeftButton, {}, {340, 230});
    EXPECT_NE(map().offset(), before);
    EXPECT_EQ(fleet().selectedReplica(), replica) << "a drag selects nothing";
}

TEST_F(MapPage, ATitleStaysInSightWhileItsReplicaIs) {
    show({4, 64, 8});
    fleet().select(0, 40);
    auto* in = named<QToolButton>("Zoom in on the map (+)");
    ASSERT_NE(in, nullptr);
    for (int i = 0; i < map().layoutOfMap().levels(); ++i) in->click();
    ASSERT_GT(map().offset().y(), 0);
    ASSERT_GT(map().layoutOfMap().at(map().level()).blockTitle, 0);
    // A rank that is moved to is not beneath the title.
    for (int i = 0; i < 6; ++i) key(Qt::Key_Up);
    const int shard = fleet().selectedShard();
    const QRect cell = map().cellOf({0, shard});
    QTest::mouseClick(&map(), Qt::LeftButton, {}, cell.center());
    EXPECT_EQ(fleet().selectedShard(), shard);
    EXPECT_GT(cell.top(), map().layoutOfMap().at(map().level()).blockTitle);
    map().pan({0, 2 * cell.height()});
    ASSERT_GT(map().offset().y(), 0);
    QTest::mouseClick(&map(), Qt::LeftButton, {}, {cell.center().x(), 4});
    EXPECT_EQ(fleet().selectedReplica(), 0);
    EXPECT_EQ(fleet().selectedShard(), -1) << "the title is the replica's, not a cell's";
    named<QToolButton>("Zoom out (\u2212)")->click();
    EXPECT_EQ(map().level(), map().layoutOfMap().levels() - 2);
    named<QToolButton>("Show the whole fleet (Home)")->click();
    EXPECT_EQ(map().level(), 0);
}

TEST_F(MapPage, ADoubleClickGoesToTheReplicaThenToTheNode) {
    show({4, 64, 8});
    QTest::mouseDClick(&map(), Qt::LeftButton, {}, map().cellOf({3, 40}).center());
    const int replica = map().level();
    QTest::mouseDClick(&map(), Qt::LeftButton, {}, map().cellOf({3, 40}).center());
    EXPECT_GT(map().level(), std::max(replica, 0));
    EXPECT_TRUE(map().rect().contains(map().cellOf({3, 40})));
}

TEST_F(MapPage, FindingDimsTheOthersAndSelectsTheFirst) {
    show({4, 64, 8});
    console.press("Ctrl+Alt+G");
    auto* field = named<QLineEdit>("Find a rank, a replica or a node on the map");
    ASSERT_NE(field, nullptr);
    ASSERT_TRUE(field->hasFocus());
    const auto colorOf = [this](RankId rank) {
        return map().grab().toImage().pixelColor(map().cellOf(rank).center());
    };
    const QColor other = colorOf({0, 40});
    const QColor match = colorOf({2, 20});
    QTest::keyClicks(field, "gpu-00018");
    EXPECT_EQ(fleet().selectedReplica(), 2);
    EXPECT_EQ(fleet().selectedShard(), 16);
    EXPECT_TRUE(console.says("8 ranks"));
    EXPECT_NE(colorOf({0, 40}), other);
    EXPECT_EQ(colorOf({2, 20}), match);
    QTest::keyClick(field, Qt::Key_Return);
    EXPECT_TRUE(map().hasFocus());
    field->setText("nobody");
    EXPECT_TRUE(console.says("no match"));
    EXPECT_EQ(fleet().selectedReplica(), 2);
}

TEST_F(MapPage, TheWorstRanksAreOneKeyAway) {
    show({4, 64, 8});
    auto* figure = named<QComboBox>("Figure that colours the map");
    ASSERT_NE(figure, nullptr);
    figure->setCurrentIndex(static_cast<int>(FleetFigure::kBeatAge));
    Q_EMIT figure->activated(figure->currentIndex());
    console.press("Ctrl+Alt+W");
    EXPECT_EQ(fleet().selectedReplica(), 0);
    EXPECT_EQ(fleet().selectedShard(), 1) << "the one without heartbeats";
    console.press("Ctrl+Alt+W");
    EXPECT_FALSE(fleet().selectedReplica() == 0 && fleet().selectedShard() == 1);
    bool told = false;
    for (const auto* chip : fleet().mapPanel().findChildren<QToolButton*>())
        told = told || chip->accessibleName().startsWith("Number 1 of the worst: r0s1");
    EXPECT_TRUE(told);
    EXPECT_EQ(console.settings->value("fleet/figure"), static_cast<int>(FleetFigure::kBeatAge));
}

TEST_F(MapPage, WhereThereIsLittleRoomTheMapHasIt) {
    show({4, 64, 8});
    auto* details = named<QLabel>("Details of the selected replica");
    ASSERT_NE(details, nullptr);
    EXPECT_TRUE(details->isVisible());
    const int height = map().height();
    fleet().setMaximumHeight(280);
    console.settle();
    EXPECT_FALSE(details->isVisible());
    EXPECT_GT(map().height(), 280 - height / 2);
    console.press("Ctrl+Alt+B");
    EXPECT_TRUE(details->isVisible()) << "the table has no tool tips for them";
}

TEST_F(MapPage, ANewSampleKeepsWhatIsInSight) {
    show({4, 64, 8});
    fleet().select(1, 5);
    key(Qt::Key_Return);
    const int level = map().level();
    const QPoint offset = map().offset();
    console.send({test::nextSample(console.feed.state(), 9)});
    EXPECT_EQ(map().level(), level);
    EXPECT_EQ(map().offset(), offset);
}

/// All but the training ranks' colour is found on the picture of a fleet in which one rank is
/// gone, however small it is there.
TEST_F(MapPage, OneBadRankAmongVeryManyIsSeen) {
    model::RunState state = test::madeFleet({2, 8192, 8});
    for (auto& rank : state.ranks) rank.pid = 1;
    for (auto& rank : state.ranks) rank.phase = model::RankPhase::kCompute;
    for (auto& rank : state.ranks) rank.beatAgeMs = rank.progressAgeMs = 1;
    state.ranks[5003].pid = 0;
    FleetMap small;
    small.resize(320, 200);
    small.setFleet(state, FleetFigure::kState);
    ASSERT_TRUE(small.layoutOfMap().at(0).aggregated);
    const QImage image = small.grab().toImage();
    const QRgb bad = theme().tokens().bad.rgb();
    int pixels = 0;
    for (int y = 0; y < image.height() - 28; ++y)
        for (int x = 0; x < image.width(); ++x) pixels += image.pixel(x, y) == bad;
    EXPECT_GE(pixels, MapLayout::kLeastCell * MapLayout::kLeastCell);
}

}  // namespace
}  // namespace bulkhead::ui
