// SPDX-License-Identifier: GPL-3.0-only
#include <gmock/gmock.h>

#include <QComboBox>
#include <QFile>
#include <QLineEdit>
#include <QListWidget>
#include <QPlainTextEdit>
#include <QPushButton>
#include <QRegularExpression>
#include <QSpinBox>
#include <QTableView>
#include <QTest>

#include "app/models/policy_form.h"
#include "app/views/export_dialog.h"
#include "app/views/fleet_view.h"
#include "app/views/job_dialog.h"
#include "app/views/jobs_dialog.h"
#include "app/views/policy_dialog.h"
#include "app/views/runs_view.h"
#include "app/widgets/command_palette.h"
#include "backend/model/command_text.h"
#include "tests/app/support/console.h"

/// Actions on jobs, nodes, policies and runs: by keyboard, through the one registry, and
/// asked for through the one seam.
namespace bulkhead::ui {
namespace {

using testing::Contains;
using testing::ElementsAre;

template <class Dialog>
Dialog* dialogOf(test::Console& console) {
    return console.window->findChild<Dialog*>();
}

model::Event nodeIs(test::Console& console, model::NodeState state) {
    model::Event event;
    event.seq = console.feed.state().seq + 1;
    event.timeNs = console.run.nowNs();
    event.body = model::NodeChanged{"node0", "127.0.0.1", 4, state, ""};
    return event;
}

void runByPalette(test::Console& console, const QString& letters) {
    console.press("Ctrl+K");
    auto* palette = dialogOf<CommandPalette>(console);
    ASSERT_NE(palette, nullptr);
    auto* input = palette->findChild<QLineEdit*>();
    QTest::keyClicks(input, letters);
    QTest::keyClick(input, Qt::Key_Return);
}

model::RunInfo runNamed(const char* id) {
    model::RunInfo run;
    run.id = id;
    run.phase = "finished";
    run.startedNs = test::SampleRun::kStartNs;
    run.replicas = 4;
    run.shards = 2;
    return run;
}

QString describe(const QWidget* w) {
    return w ? w->metaObject()->className() + QStringLiteral(" of ") +
                   w->window()->metaObject()->className()
             : QStringLiteral("nothing");
}

/// The Runs page with two runs in it and the first selected.
void showRuns(test::Console& console) {
    console.log->runs = {runNamed("demo-1"), runNamed("demo-2")};
    console.press("Ctrl+6");
    auto* table = console.view<RunsView>().findChild<QTableView*>();
    ASSERT_TRUE(QTest::qWaitFor([&] { return table->model()->rowCount() == 2; }))
        << "page visible: " << table->isVisible() << ", asked " << console.log->runsListed
        << " times, focus in " << qPrintable(describe(QApplication::focusWidget()));
    table->setFocus();
    table->selectRow(0);
}

TEST(Actions, ANodeIsCordonedFromItsRowAndOnlyThenUncordoned) {
    test::Console console(20);
    console.confirmer.answer = 0;
    console.view<FleetView>().selectNode("node0");
    EXPECT_FALSE(console.actions.find("node.uncordon")->isEnabled());
    EXPECT_FALSE(console.actions.find("replica.drain")->isEnabled());
    console.press("Ctrl+G");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 1; }));
    EXPECT_EQ(console.log->actions[0].kind, model::ActionKind::kCordon);
    EXPECT_EQ(console.log->actions[0].node, "node0");
    ASSERT_EQ(console.confirmer.asked.size(), 1u);
    console.send({nodeIs(console, model::NodeState::kCordoned)});
    EXPECT_FALSE(console.actions.find("node.cordon")->isEnabled());
    console.press("Ctrl+Shift+G");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 2; }));
    EXPECT_EQ(console.log->actions[1].kind, model::ActionKind::kUncordon);
}

TEST(Actions, TheNodeOfASelectedRankCanBeCordonedToo) {
    test::Console console(20);
    console.confirmer.answer = 0;
    console.view<FleetView>().select(3, 1);
    console.press("Ctrl+G");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 1; }));
    EXPECT_EQ(console.log->actions[0].node, "node1");
}

TEST(Actions, APolicyIsFoundByItsNameLookedAtAskedForAndSet) {
    test::Console console(20);
    console.log->preflight.title = "Set batch to constant";
    console.log->preflight.effect = "From the next quorum on the survivors take the samples over.";
    console.confirmer.answer = 0;
    runByPalette(console, "policy batch");
    auto* dialog = dialogOf<PolicyDialog>(console);
    ASSERT_NE(dialog, nullptr);
    EXPECT_NE(console.named("Value now", dialog), nullptr);
    auto* value = qobject_cast<QComboBox*>(console.named("New value", dialog));
    ASSERT_NE(value, nullptr);
    QTest::keyClick(value, Qt::Key_Down);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.says("take the samples over"); }));
    QTest::keyClick(dialog, Qt::Key_Return);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == 1; }));
    const model::Action& action = console.log->actions[0];
    EXPECT_EQ(action.kind, model::ActionKind::kSetPolicy);
    EXPECT_EQ(action.policy, "batch");
    EXPECT_EQ(action.value, "constant");
    ASSERT_EQ(console.confirmer.asked.size(), 1u);
    EXPECT_EQ(console.confirmer.asked[0].title, "Set batch to constant?");
}

TEST(Actions, AFigureInMegabytesIsSetInBytes) {
    test::Console console(20);
    console.actions.find("job.policy.fetch_bytes_per_second")->trigger();
    auto* dialog = dialogOf<PolicyDialog>(console);
    auto* value = qobject_cast<QSpinBox*>(console.named("New value", dialog));
    ASSERT_NE(value, nullptr);
    EXPECT_EQ(value->text(), "no cap");
    value->setValue(3);
    EXPECT_EQ(dialog->composed().value, "3000000");
}

TEST(Actions, AnUnchangedPolicyCannotBeSet) {
    test::Console console(20);
    console.actions.find("job.policy.recovery")->trigger();
    auto* dialog = dialogOf<PolicyDialog>(console);
    for (auto* button : dialog->findChildren<QPushButton*>())
        EXPECT_FALSE(button->text().startsWith("Set") && button->isEnabled());
    EXPECT_TRUE(console.says("That is what it is now."));
}

TEST(Actions, AnotherJobOfTheDaemonComesOnScreen) {
    test::Console console(20);
    model::JobInfo first;
    first.id = "demo";
    model::JobInfo second;
    second.id = "other";
    second.run = "other-1";
    console.log->jobs.onJobs({first, second});
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.session->status().jobs.size() == 2; }));
    console.press("Ctrl+Shift+J");
    auto* dialog = dialogOf<JobsDialog>(console);
    ASSERT_NE(dialog, nullptr);
    auto* list = dialog->findChild<QListWidget*>();
    QTest::keyClick(list, Qt::Key_Down);
    QTest::keyClick(list, Qt::Key_Return);
    EXPECT_EQ(console.log->watched->job, "other");
}

TEST(Actions, AJobWithChangesStartsOnTheAttachedDaemon) {
    test::Console console(5);
    console.press("Ctrl+J");
    auto* dialog = dialogOf<JobDialog>(console);
    ASSERT_NE(dialog, nullptr);
    QTest::keyClicks(console.named("Replicas", dialog), "8");
    QTest::keyClicks(console.named("Faults, one on each line", dialog), "kill:replica=2@step=50");
    QTest::keyClicks(console.named("Other settings, one on each line", dialog),
                     "policies.lr=linear");
    QTest::keyClicks(console.named("Resume from", dialog), "demo-1");
    QTest::keyClick(console.named("Where it runs", dialog), Qt::Key_Down);
    QTest::keyClick(dialog, Qt::Key_Return);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->started.size() == 1; }));
    const client::JobText& job = console.log->started[0];
    EXPECT_THAT(job.overrides, ElementsAre("replicas=8", "faults=[\"kill:replica=2@step=50\"]",
                                           "policies.lr=linear"));
    EXPECT_EQ(job.resumeFrom, "demo-1");
    EXPECT_FALSE(job.text.empty());
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->watched->job == "started"; }));
}

TEST(Actions, AFaultThatCannotBeReadIsToldBeforeAnythingStarts) {
    test::Console console(5);
    client::JobSource job;
    job.faults = {"kill:replica"};
    console.session->startJob(job);
    EXPECT_TRUE(console.log->started.empty());
    EXPECT_TRUE(console.says("key=value"));
}

TEST(Actions, TwoRunsAreComparedByKeyboard) {
    test::Console console(30);
    showRuns(console);
    EXPECT_FALSE(console.actions.find("runs.compare")->isEnabled());
    auto* table = console.view<RunsView>().findChild<QTableView*>();
    QTest::keyClick(table, Qt::Key_Down, Qt::ShiftModifier);
    ASSERT_TRUE(console.actions.find("runs.compare")->isEnabled());
    console.press("Ctrl+M");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.says("Mean time to rejoin"); }));
    EXPECT_TRUE(console.says("demo-1"));
    EXPECT_TRUE(console.says("demo-2"));
    QStringList charts;
    for (const QWidget* w : console.view<RunsView>().findChildren<QWidget*>())
        if (w->isVisible() && w->accessibleDescription().startsWith("Loss")) charts << "loss";
    EXPECT_EQ(charts.size(), 1);
}

TEST(Actions, RunsThatCameWhileThePageWasBehindAreThereWhenItIsInFront) {
    test::Console console(5);
    showRuns(console);
    auto* table = console.view<RunsView>().findChild<QTableView*>();
    console.press("Ctrl+7");
    console.log->runs.push_back(runNamed("demo-3"));
    const int asked = console.log->runsListed;
    console.press("Ctrl+6");
    EXPECT_TRUE(QTest::qWaitFor([&] { return table->model()->rowCount() == 3; }));
    EXPECT_GT(console.log->runsListed, asked);
}

TEST(Actions, TheLedgerOfARunIsAddedUpAgain) {
    test::Console console(30);
    showRuns(console);
    console.press("Ctrl+Shift+K");
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.says("30 steps"); }));
    EXPECT_TRUE(console.says("adds up"));
}

TEST(Actions, ARunIsExportedToAFile) {
    test::Console console(10);
    console.log->exportText = "step,loss\n1,2.5\n";
    showRuns(console);
    console.press("Ctrl+Shift+S");
    auto* dialog = dialogOf<ExportDialog>(console);
    ASSERT_NE(dialog, nullptr);
    const QString path = console.folder.filePath("out.csv");
    qobject_cast<QLineEdit*>(console.named("File", dialog))->setText(path);
    QTest::keyClick(dialog, Qt::Key_Return);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.says("Written to"); }));
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::ReadOnly));
    EXPECT_EQ(file.readAll(), "step,loss\n1,2.5\n");
    ASSERT_EQ(console.log->exported.size(), 1u);
    EXPECT_EQ(console.log->exported[0].format, client::ExportFormat::kCsv);
}

TEST(Actions, AnExportThatCannotBeWrittenIsTold) {
    test::Console console(10);
    client::ExportRequest request;
    bool failed = false;
    console.session->exportRun(request, console.folder.filePath("no/such/folder/x.csv"),
                               [&](auto result) { failed = !result.ok(); });
    EXPECT_TRUE(failed);
    EXPECT_TRUE(console.log->exported.empty());
}

TEST(Actions, ARunIsResumedByWayOfTheJobDialog) {
    test::Console console(10);
    showRuns(console);
    console.press("Ctrl+Shift+N");
    auto* dialog = dialogOf<JobDialog>(console);
    ASSERT_NE(dialog, nullptr);
    EXPECT_TRUE(dialog->source().resume.starts_with("demo-"));
}

TEST(Actions, EveryActionOfAJobIsInTheRegistry) {
    test::Console console(20);
    console.confirmer.answer = 0;
    std::vector<model::ActionKind> done;
    const auto trigger = [&](const char* id) {
        const size_t before = console.log->actions.size();
        QAction* action = console.actions.find(QString::fromLatin1(id));
        ASSERT_TRUE(action && action->isEnabled()) << id;
        action->trigger();
        ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() > before; })) << id;
        done.push_back(console.log->actions.back().kind);
    };
    console.view<FleetView>().select(1);
    for (const char* id :
         {"replica.drain", "replica.hold", "replica.release", "replica.restart", "node.cordon",
          "job.pause", "job.resume", "job.checkpoint", "job.stop", "job.stopNow"})
        trigger(id);
    console.send({nodeIs(console, model::NodeState::kCordoned)});
    trigger("node.uncordon");
    console.actions.find("job.policy.lr")->trigger();
    auto* dialog = dialogOf<PolicyDialog>(console);
    QTest::keyClick(console.named("New value", dialog), Qt::Key_Up);
    QTest::keyClick(dialog, Qt::Key_Return);
    ASSERT_TRUE(QTest::qWaitFor([&] { return console.log->actions.size() == done.size() + 1; }));
    done.push_back(console.log->actions.back().kind);
    for (int k = 0; k <= static_cast<int>(model::ActionKind::kSetPolicy); ++k)
        EXPECT_THAT(done, Contains(static_cast<model::ActionKind>(k)));
}

TEST(Actions, WhateverTheTableNamesIsThere) {
    QFile file(QStringLiteral(BULKHEAD_SOURCE_DIR "/docs/console.md"));
    ASSERT_TRUE(file.open(QIODevice::ReadOnly));
    test::Console console;
    int found = 0;
    for (const QString& line : QString::fromUtf8(file.readAll()).split(u'\n')) {
        if (!line.startsWith(u"| `")) continue;
        auto ids = QRegularExpression(QStringLiteral("`([a-z]+\\.[a-zA-Z.]+)`"))
                       .globalMatch(line.section(u'|', 2, 2));
        for (; ids.hasNext(); ++found) {
            const QString id = ids.next().captured(1);
            EXPECT_NE(console.actions.find(id), nullptr) << qPrintable(id);
        }
    }
    EXPECT_GT(found, 25);
}

/// Keys of everything a policy table has.
struct Keys {
    std::vector<std::string> names;
    template <class T>
    void operator()(std::string_view name, const T&) {
        names.emplace_back(name);
    }
};

TEST(Actions, EveryPolicyHasItsFormWithEveryChoice) {
    Keys keys;
    const model::Policies policies;
    model::Policies::fields(policies, keys);
    ASSERT_EQ(keys.names.size(), policyFields().size());
    for (size_t i = 0; i < keys.names.size(); ++i) {
        const PolicyField& field = policyFields()[i];
        EXPECT_EQ(field.key, keys.names[i]);
        EXPECT_FALSE(policyWords(policies, field).isEmpty()) << field.key;
        for (const PolicyField::Choice& choice : field.choices)
            EXPECT_TRUE(model::withPolicy(policies, field.key, choice.value).ok()) << choice.value;
    }
    EXPECT_EQ(policyFields()[0].choices.size(), EnumNames<model::LrPolicy>::kNames.size());
    EXPECT_EQ(policyFields()[1].choices.size(), EnumNames<model::BatchPolicy>::kNames.size());
    EXPECT_EQ(policyFields()[2].choices.size(), EnumNames<model::RecoveryPolicy>::kNames.size());
}

}  // namespace
}  // namespace bulkhead::ui
