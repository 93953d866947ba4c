// SPDX-License-Identifier: GPL-3.0-only
#include <gmock/gmock.h>

#include <QComboBox>
#include <QFile>
#include <QTabWidget>
#include <QTableView>
#include <QTest>

#include "app/views/experts_view.h"
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
    auto* table = qobject_cast<QTableView*>(console.named("Expert loads in figures", &page));
    ASSERT_NE(table, nullptr);
    const auto* loads = table->model();
    auto* tabs = page.findChild<QTabWidget*>();
    auto* domain = qobject_cast<QComboBox*>(console.named("Domain"));
    ASSERT_NE(domain, nullptr);
    ASSERT_EQ(loads->rowCount(), 6);
    EXPECT_EQ(domain->itemText(1), "code");
    page.openRecording(recordingIn(console.folder));
    ASSERT_TRUE(QTest::qWaitFor([&] { return loads->rowCount() == 1; }))
        << "the job's loads would be taken for the recording's";
    EXPECT_EQ(loads->columnCount(), 5);
    EXPECT_EQ(loads->index(0, 1).data().toString(), "1.00");
    EXPECT_EQ(domain->itemText(1), "even");
    EXPECT_EQ(console.named("Which steps"), nullptr);
    domain->setCurrentIndex(1);
    Q_EMIT domain->activated(1);
    EXPECT_EQ(loads->index(0, 1).data().toString(), "2.00") << "its own expert";
    EXPECT_EQ(loads->index(0, 2).data().toString(), "0.00");
    tabs->setCurrentIndex(1);
    EXPECT_TRUE(console.says("routing.jsonl. Jensen-Shannon distance"));
    console.send({console.run.moveExperts({})});
    EXPECT_EQ(loads->rowCount(), 1) << "what the job does meanwhile brings nothing back";
    console.press("Ctrl+U");
    EXPECT_TRUE(QTest::qWaitFor([&] { return loads->rowCount() == 6; }));
    EXPECT_EQ(domain->itemText(1), "code");
    page.openRecording(console.folder.filePath("none.jsonl"));
    EXPECT_TRUE(QTest::qWaitFor([&] { return console.says("Cannot read the recording"); }));
    EXPECT_EQ(loads->rowCount(), 6);
}

}  // namespace
}  // namespace bulkhead::ui
