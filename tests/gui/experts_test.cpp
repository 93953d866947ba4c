// SPDX-License-Identifier: GPL-3.0-only
#include <gmock/gmock.h>

#include <QFile>
#include <QTabWidget>
#include <QTest>

#include "app/views/experts_view.h"
#include "app/widgets/heat_map.h"
#include "tests/app/support/console.h"

/// The Experts page in the real window.
namespace bulkhead::ui {
namespace {

/// Eight requests of two domains, one layer of four experts: domain d uses experts d and d + 2.
QString recordingIn(const QTemporaryDir& folder) {
    const QString path = folder.filePath("routing.jsonl");
    QFile file(path);
    EXPECT_TRUE(file.open(QIODevice::WriteOnly));
    file.write("{\"routing\": {\"model\": \"m\", \"layers\": 1, \"experts\": 4, \"top_k\": 2}}\n");
    for (int r = 0; r < 8; ++r)
        file.write(r % 2 == 0 ? "{\"experts\": [[[0, 2]], [[2, 0]]], \"domain\": \"even\"}\n"
                              : "{\"experts\": [[[1, 3]], [[3, 1]]], \"domain\": \"odd\"}\n");
    return path;
}

TEST(ExpertsPage, ARecordingTakesThePageUntilItIsClosed) {
    test::Console console;
    console.goLive(30);
    console.press("Ctrl+4");
    auto& page = console.view<ExpertsView>();
    auto* map = page.findChild<HeatMap*>();
    auto* tabs = page.findChild<QTabWidget*>();
    ASSERT_TRUE(map->isVisible());
    page.openRecording(recordingIn(console.folder));
    ASSERT_TRUE(QTest::qWaitFor([&] { return !map->isVisible(); }))
        << "the job's loads would be taken for the recording's";
    EXPECT_FALSE(tabs->isTabVisible(0));
    tabs->setCurrentIndex(1);
    EXPECT_TRUE(console.says("routing.jsonl. Jensen-Shannon distance"));
    console.send({console.run.moveExperts({})});
    EXPECT_FALSE(map->isVisible()) << "what the job does meanwhile brings nothing back";
    console.press("Ctrl+U");
    EXPECT_TRUE(QTest::qWaitFor([&] { return map->isVisible(); }));
    EXPECT_TRUE(tabs->isTabVisible(0));
    page.openRecording(console.folder.filePath("none.jsonl"));
    EXPECT_TRUE(QTest::qWaitFor([&] { return console.says("Cannot read the recording"); }));
    EXPECT_TRUE(map->isVisible());
}

}  // namespace
}  // namespace bulkhead::ui
