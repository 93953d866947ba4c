// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QApplication>

#include "app/widgets/theme.h"

/// Tests of widgets run without a display and always with the same look.
int main(int argc, char** argv) {
    qputenv("QT_QPA_PLATFORM", "offscreen");
    qputenv("QT_SCALE_FACTOR", "1");
    testing::InitGoogleTest(&argc, argv);
    QApplication app(argc, argv);
    QApplication::setQuitOnLastWindowClosed(false);
    bulkhead::ui::Theme theme(app, bulkhead::ui::Scheme::kDark);
    return RUN_ALL_TESTS();
}
