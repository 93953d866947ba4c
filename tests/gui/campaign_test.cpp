// SPDX-License-Identifier: GPL-3.0-only
#include <gmock/gmock.h>

#include <QAbstractItemModelTester>
#include <QCheckBox>
#include <QFile>
#include <QPushButton>
#include <QSpinBox>
#include <QTableView>
#include <QTest>

#include "app/models/campaign_rows.h"
#include "app/views/campaign_page.h"
#include "app/views/faults_view.h"
#include "tests/app/support/sample_campaign.h"

/// The Campaigns page of the Faults view: chosen, looked at, asked for, followed, stopped,
/// exported.
namespace bulkhead::ui {
namespace {

using testing::HasSubstr;

/// On screen, with a file of the test chosen.
CampaignPage& open(test::Console& console) {
    console.log->campaign.preflight.title = "Run fault campaign calm on demo";
    console.log->campaign.preflight.effect = "2 faults within 1 min.";
    console.log->campaign.preflight.revision = 7;
    const QString path = console.folder.filePath("calm.toml");
    QFile file(path);
    EXPECT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(
        "about = \"A quiet one.\"\nduration = \"1m\"\n"
        "[[faults]]\nat = \"0s\"\nfault = \"nan:replica=any\"\n");
    file.close();
    console.press("Ctrl+Shift+A");
    CampaignPage& page = console.view<FaultsView>().campaigns();
    page.chooseFile(path);
    return page;
}

QString textAt(QTableView* table, int row, int column) {
    return table->model()->index(row, column).data().toString();
}

TEST(Campaigns, TheStormComesWithTheProgram) {
    test::Console console(20);
    console.press("Ctrl+Shift+A");
    const auto text = console.view<FaultsView>().campaigns().chosen();
    ASSERT_TRUE(text.ok()) << text.failure().cause;
    EXPECT_EQ(text.value().fileName, "storm.toml");
    EXPECT_THAT(text.value().text, HasSubstr("[[rates]]"));
}

TEST(Campaigns, OneIsLookedAtAskedForThroughTheSeamAndRun) {
    test::Console console(20);
    console.confirmer.answer = 0;
    open(console);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.says("2 faults within 1 min."); }));
    EXPECT_TRUE(console.says("A quiet one."));
    qobject_cast<QSpinBox*>(console.named("Seed"))->setValue(4);
    qobject_cast<QSpinBox*>(console.named("Duration"))->setValue(60);
    qobject_cast<QCheckBox*>(console.named("Allow what cannot be undone"))->setChecked(true);
    QAction* run = console.actions.find("campaign.run");
    ASSERT_TRUE(QTest::qWaitFor([&] { return run->isEnabled(); }));
    console.press("Ctrl+Shift+U");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->campaigns.size() == 1; }));
    ASSERT_EQ(console.confirmer.asked.size(), 1u);
    EXPECT_EQ(console.confirmer.asked[0].title, "Run fault campaign calm on demo?");
    EXPECT_EQ(console.confirmer.asked[0].effect, "2 faults within 1 min.");
    EXPECT_FALSE(console.confirmer.asked[0].warning.isEmpty());
    const model::CampaignText& sent = console.log->campaigns[0];
    EXPECT_THAT(sent.text, HasSubstr("A quiet one."));
    EXPECT_EQ(sent.seed, 4u);
    EXPECT_EQ(sent.durationMs, 60'000u);
    EXPECT_TRUE(sent.allowLasting);
    EXPECT_EQ(console.log->revisions.back(), 7u);
}

TEST(Campaigns, NobodyIsAskedAboutWhatIsRefusedOrCannotBeRead) {
    test::Console console(20);
    console.log->campaign.preflight.allowed = false;
    console.log->campaign.preflight.refusal = "not all of it can be undone";
    CampaignPage& page = open(console);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.says("not all of it can be undone"); }));
    EXPECT_FALSE(console.actions.find("campaign.run")->isEnabled());
    const QString path = console.folder.filePath("bad.toml");
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write("duration = \"soon\"\n");
    file.close();
    page.chooseFile(path);
    EXPECT_TRUE(console.says("bad.toml:1: duration: expected a duration"));
    ASSERT_TRUE(file.open(QIODevice::WriteOnly | QIODevice::Truncate));
    file.write("duration = \"1min\"\n\n[[fault]]\nkind = \"kill\"\nevery = \"10s\"\n");
    file.close();
    EXPECT_TRUE(QTest::qWaitFor([&] { return !console.says("expected a duration"); }))
        << "it was repaired";
    page.chooseFile(console.folder.filePath("none.toml"));
    EXPECT_TRUE(console.says("cannot be read"));
    EXPECT_FALSE(console.actions.find("campaign.run")->isEnabled());
}

TEST(Campaigns, OneThatGoesOnIsFollowedAndStoppedAtOnce) {
    test::Console console(36);
    open(console);
    EXPECT_FALSE(console.actions.find("campaign.stop")->isEnabled());
    test::playCampaign(console, 40);
    auto* list = qobject_cast<QTableView*>(console.named("Campaigns of this run"));
    ASSERT_TRUE(QTest::qWaitFor([&] { return list->model()->rowCount() == 1; }));
    EXPECT_EQ(textAt(list, 0, 1), "storm");
    EXPECT_TRUE(console.says("Injecting, "));
    EXPECT_TRUE(console.says("6 of 14"));
    auto* verdicts = qobject_cast<QTableView*>(console.named("Verdicts"));
    ASSERT_EQ(verdicts->model()->rowCount(), 7);
    EXPECT_EQ(textAt(verdicts, 0, 1), "Holds so far");
    auto* faults = qobject_cast<QTableView*>(console.named("Planned faults"));
    ASSERT_EQ(faults->model()->rowCount(), 14);
    EXPECT_THAT(textAt(faults, 2, 4).toStdString(), HasSubstr("skipped: could not be injected"));
    EXPECT_EQ(textAt(faults, 13, 4), "to come");
    EXPECT_FALSE(console.actions.find("campaign.run")->isEnabled());
    console.press("Ctrl+Shift+X");
    EXPECT_THAT(console.log->stoppedCampaigns, testing::ElementsAre(1u));
    EXPECT_TRUE(console.confirmer.asked.empty());
}

TEST(Campaigns, TheVerdictStaysAndTheReportIsExported) {
    test::Console console(36);
    CampaignPage& page = open(console);
    test::playCampaign(console, 58);
    test::endCampaign(console);
    auto* verdicts = qobject_cast<QTableView*>(console.named("Verdicts"));
    ASSERT_TRUE(QTest::qWaitFor(
        [&] { return verdicts->model()->rowCount() == 7 && textAt(verdicts, 3, 1) == "Passed"; }));
    EXPECT_TRUE(console.says("Failed after"));
    EXPECT_FALSE(console.actions.find("campaign.stop")->isEnabled());
    ASSERT_TRUE(console.actions.find("campaign.export")->isEnabled());
    const QString path = console.folder.filePath("report.html");
    page.exportTo(path);
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::ReadOnly));
    EXPECT_THAT(file.readAll().toStdString(), HasSubstr("<title>storm on "));
    page.exportTo(console.folder.filePath("no/such/folder/report.html"));
    EXPECT_TRUE(console.says("Cannot write the report"));
}

TEST(Campaigns, TheRowsAreAModelOfGoodManners) {
    RowsModel model({"a", "b"}, {1});
    const QAbstractItemModelTester tester(&model,
                                          QAbstractItemModelTester::FailureReportingMode::Fatal);
    model.setRows({{{"x", Tone::kNeutral, false}, {"1", Tone::kBad, true}}});
    model.setRows({{{"y", Tone::kNeutral, false}, {"2", Tone::kBad, true}}});
    EXPECT_EQ(model.index(0, 0).data().toString(), "y");
    model.setRows({});
    EXPECT_EQ(model.rowCount(), 0);
}

}  // namespace
}  // namespace bulkhead::ui
