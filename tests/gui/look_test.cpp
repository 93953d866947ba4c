// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QAbstractButton>
#include <QAbstractItemView>
#include <QPainter>
#include <QSet>
#include <QTest>
#include <cmath>

#include "app/widgets/fleet_map.h"
#include "app/widgets/table_style.h"
#include "tests/app/support/console.h"

/// Assertions on looks: contrast, shapes beside colours, room, and the way of the
/// keyboard.
namespace bulkhead::ui {
namespace {

double luminance(const QColor& color) {
    const auto linear = [](double c) {
        return c <= 0.03928 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
    };
    return 0.2126 * linear(color.redF()) + 0.7152 * linear(color.greenF()) +
           0.0722 * linear(color.blueF());
}

/// Contrast ratio of WCAG 2: 1 to 21.
double contrast(const QColor& a, const QColor& b) {
    const double x = luminance(a);
    const double y = luminance(b);
    return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

class Look : public testing::TestWithParam<Scheme> {
  protected:
    const Tokens& t = tokensOf(GetParam());
};

TEST_P(Look, TextCanBeReadOnEveryGround) {
    const std::vector<std::pair<const char*, QColor>> texts = {
        {"text", t.text},       {"muted", t.muted}, {"busy", t.busy}, {"notice", t.notice},
        {"warning", t.warning}, {"bad", t.bad},     {"good", t.good}};
    const std::vector<std::pair<const char*, QColor>> grounds = {{"window", t.window},
                                                                 {"surface", t.surface},
                                                                 {"raised", t.raised},
                                                                 {"selection", t.selection}};
    for (const auto& [text, color] : texts)
        for (const auto& [ground, below] : grounds)
            EXPECT_GE(contrast(color, below), 4.5) << text << " on " << ground;
    for (const QColor& below : {t.window, t.surface, t.raised})
        EXPECT_GE(contrast(t.faint, below), 4.5) << "faint on " << below.name().toStdString();
    for (int s = 0; s <= static_cast<int>(model::ReplicaState::kFailed); ++s) {
        const QColor lane = t.of(static_cast<model::ReplicaState>(s));
        for (const QColor& ground : {lane, blend(t.surface, lane, 0.3)})
            EXPECT_GE(contrast(inkOn(ground), ground), 4.5) << s;
    }
    for (const QColor& ground : {t.stall, t.replay})
        EXPECT_GE(contrast(inkOn(ground), ground), 4.5);
    EXPECT_GE(contrast(t.onAccent, t.accent), 4.5);
}

TEST_P(Look, MarksLinesAndFocusStandOut) {
    for (int s = 0; s <= static_cast<int>(model::ReplicaState::kFailed); ++s)
        EXPECT_GE(contrast(t.of(static_cast<model::ReplicaState>(s)), t.surface), 3) << s;
    for (const QColor& line : t.series) EXPECT_GE(contrast(line, t.surface), 3);
    EXPECT_GE(contrast(t.stall, t.surface), 3);
    EXPECT_GE(contrast(t.accent, t.surface), 3);
}

TEST_P(Look, EveryShadeOfTheFleetMapStandsOut) {
    theme().setScheme(GetParam());
    for (const QColor& shade : FleetMap::shades()) EXPECT_GE(contrast(shade, t.surface), 3);
    for (int i = 0; i < kRankConditions; ++i) {
        const QColor color = FleetMap::colorOf(static_cast<RankCondition>(i));
        EXPECT_GE(contrast(color, t.surface), 3) << i;
        EXPECT_GE(contrast(inkOn(color), color), 4.5) << i;
    }
    theme().setScheme(Scheme::kDark);
}

INSTANTIATE_TEST_SUITE_P(Schemes, Look, testing::Values(Scheme::kDark, Scheme::kLight));

TEST(Shapes, EveryToneHasAMarkOfItsOwn) {
    QList<QImage> seen;
    for (const Tone tone :
         {Tone::kGood, Tone::kBusy, Tone::kNotice, Tone::kWarning, Tone::kBad, Tone::kMuted}) {
        QImage image(20, 20, QImage::Format_RGB32);
        image.fill(Qt::white);
        QPainter painter(&image);
        paintMark(painter, {10, 10}, tone, Qt::black);
        painter.end();
        EXPECT_FALSE(seen.contains(image)) << static_cast<int>(tone);
        seen << image;
    }
}

TEST(Room, NothingIsCutInASmallWindow) {
    test::Console console(60);
    console.window->resize(1280, 720);
    console.window->layout().arrange();
    console.settle();
    EXPECT_LE(console.window->width(), 1280);
    EXPECT_LE(console.window->height(), 720);
    for (View* view : console.window->layout().views()) {
        console.window->layout().raise(view);
        console.settle();
        for (const QAbstractButton* button : view->header()->findChildren<QAbstractButton*>())
            EXPECT_TRUE(!button->isVisible() ||
                        button->width() >= button->minimumSizeHint().width())
                << qPrintable(view->id() + u' ' + button->text());
        EXPECT_GE(view->width(), view->minimumSizeHint().width()) << qPrintable(view->id());
        EXPECT_GE(view->height(), view->minimumSizeHint().height()) << qPrintable(view->id());
    }
}

TEST(Keyboard, TabReachesWhateverTakesTheKeyboard) {
    test::Console console(60);
    QSet<QWidget*> wanted;
    for (QWidget* w : console.window->findChildren<QWidget*>())
        if ((w->focusPolicy() & Qt::TabFocus) && w->isVisible() && w->isEnabled() &&
            w->focusProxy() == nullptr && !w->visibleRegion().isEmpty() &&
            !w->accessibleName().isEmpty())
            wanted << w;
    ASSERT_GT(wanted.size(), 5);
    console.window->activateWindow();
    for (int i = 0; i < 200 && !wanted.isEmpty(); ++i) {
        wanted.remove(QApplication::focusWidget());
        QTest::keyClick(QApplication::focusWidget(), Qt::Key_Tab);
    }
    QStringList left;
    for (const QWidget* w : wanted) left << w->accessibleName();
    EXPECT_TRUE(left.isEmpty()) << qPrintable(left.join(", "));
}

TEST(Keyboard, FocusCanBeSeen) {
    test::Console console(60);
    for (const char* name : {"Replicas, ranks and nodes", "Drain replica\u2026", "Retry"}) {
        QWidget* widget = console.named(QString::fromUtf8(name));
        if (widget == nullptr) continue;
        console.window->setFocus();
        console.settle();
        const QImage before = widget->grab().toImage();
        widget->setFocus(Qt::TabFocusReason);
        console.settle();
        EXPECT_NE(widget->grab().toImage(), before) << name;
    }
}

}  // namespace
}  // namespace bulkhead::ui
