// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QComboBox>
#include <QLabel>
#include <QSlider>
#include <QTest>
#include <QToolButton>

#include "app/models/units.h"
#include "app/views/what_if_view.h"
#include "tests/app/support/console.h"

/// The What-if page in the real window, by keyboard, without a run.
namespace bulkhead::ui {
namespace {

class WhatIfPage : public testing::Test {
  protected:
    void open() { console.press("Ctrl+8"); }
    template <class W = QWidget>
    W* named(const QString& name) {
        auto* widget = qobject_cast<W*>(console.named(name, &console.view<WhatIfView>()));
        EXPECT_NE(widget, nullptr) << qPrintable(name);
        return widget;
    }
    QString figure(const QString& name) { return named<QLabel>(name)->text(); }
    QString effective() { return figure("Effective training time"); }
    /// In percent, once it is not `before`.
    double effectiveAfter(const QString& before) {
        EXPECT_TRUE(QTest::qWaitFor([&] { return effective() != before; }, 30'000))
            << "still " << qPrintable(before);
        return effective().section(QChar(0x202F), 0, 0).toDouble();
    }

    test::Console console;
};

TEST_F(WhatIfPage, NeedsNoRunAndBeginsWithThePublishedFigure) {
    open();
    EXPECT_NEAR(effectiveAfter({}), 80, 2);
    EXPECT_EQ(figure("Effective training time, This scenario"), effective());
    for (const char* name :
         {"Effective training time, Live job", "Stall for each failure, Live job",
          "Until a replica is back, Live job", "Samples trained again, Live job"})
        EXPECT_EQ(figure(name), noFigure()) << name;
}

TEST_F(WhatIfPage, AMovedSliderChangesTheFiguresAndRestoreBringsThemBack) {
    open();
    effectiveAfter({});
    const QString published = effective();
    auto* restore = console.actions.find("whatif.restore");
    EXPECT_FALSE(restore->isEnabled());
    auto* slider = named<QSlider>("Failures per 1,000 node-days");
    slider->setFocus();
    const QString source = slider->toolTip();
    EXPECT_TRUE(source.contains("arXiv")) << qPrintable(source);
    QTest::keyClick(slider, Qt::Key_PageUp);
    EXPECT_LT(effectiveAfter(published), 75);
    EXPECT_TRUE(slider->toolTip().startsWith("Set here."));
    ASSERT_TRUE(restore->isEnabled());
    const QString changed = effective();
    restore->trigger();
    effectiveAfter(changed);
    EXPECT_EQ(effective(), published);
    EXPECT_EQ(slider->toolTip(), source);
    EXPECT_FALSE(restore->isEnabled());
}

TEST_F(WhatIfPage, AnotherStartingPointGivesItsPublishedFigure) {
    open();
    effectiveAfter({});
    const QString before = effective();
    auto* start = named<QComboBox>("Start from");
    start->setFocus();
    QTest::keyClicks(start, "Synchronous");
    EXPECT_NEAR(effectiveAfter(before), 44, 2);
    EXPECT_EQ(figure("Until a replica is back, This scenario"), noFigure());
    // The same job, were it fault tolerant, is the other published figure.
    const QString sync = effective();
    auto* recovery = named<QComboBox>("After a failure");
    recovery->setFocus();
    QTest::keyClick(recovery, Qt::Key_Up);
    EXPECT_NEAR(effectiveAfter(sync), 80, 2);
}

TEST_F(WhatIfPage, TheRarerNumbersAreFoldedAway) {
    open();
    auto* more = named<QToolButton>("More numbers of the scenario");
    const auto shown = [&] { return console.named("Detection", &console.view<WhatIfView>()); };
    EXPECT_EQ(shown(), nullptr);
    more->setFocus();
    QTest::keyClick(more, Qt::Key_Space);
    EXPECT_NE(shown(), nullptr);
}

TEST_F(WhatIfPage, TheLiveJobStandsBesideTheScenario) {
    console.goLive(94);
    open();
    EXPECT_EQ(figure("Effective training time, Live job"),
              formatShare(console.feed.state().effectiveTime));
    for (const char* name :
         {"Stall for each failure, Live job", "Until a replica is back, Live job"})
        EXPECT_NE(figure(name), noFigure()) << name;
}

}  // namespace
}  // namespace bulkhead::ui
