// SPDX-License-Identifier: GPL-3.0-only
#include <gmock/gmock.h>
#include <signal.h>

#include <QDir>
#include <QDirIterator>
#include <QDropEvent>
#include <QFile>
#include <QFileInfo>
#include <QLineEdit>
#include <QMimeData>
#include <QProcess>
#include <QTableView>
#include <QTest>
#include <QToolButton>

#include "app/models/message_log.h"
#include "app/views/job_dialog.h"
#include "app/views/runs_view.h"
#include "app/views/status_strip.h"
#include "tests/app/support/console.h"
#include "tests/support/made_run_file.h"

/// Whole ways through the real window with real daemons and workers.
namespace bulkhead::ui {
namespace {

constexpr int kForeverMs = 60'000;

class Journey : public testing::Test {
  protected:
    Journey() {
        qputenv("PATH", QByteArray(BULKHEAD_BIN ":") + qgetenv("PATH"));
        qputenv("XDG_DATA_HOME", home.path().toUtf8());
    }
    static bool waitFor(const std::function<bool()>& condition) {
        return QTest::qWaitFor(condition, kForeverMs);
    }
    /// Drops a file onto the window, as a file manager does.
    static void drop(test::Console& console, const QString& path) {
        QMimeData data;
        data.setUrls({QUrl::fromLocalFile(path)});
        QDragEnterEvent enter({50, 50}, Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
        QApplication::sendEvent(console.window.get(), &enter);
        ASSERT_TRUE(enter.isAccepted());
        QDropEvent event({50, 50}, Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
        QApplication::sendEvent(console.window.get(), &event);
    }
    /// Every page but the first `kept`: the very first has the format and its version, some more
    /// the tables' definitions, all others what was written.
    static void overwritePages(const QString& path, qint64 kept) {
        QFile file(path);
        ASSERT_TRUE(file.open(QIODevice::ReadWrite));
        constexpr qint64 kPageSizeAt = 16;
        ASSERT_TRUE(file.seek(kPageSizeAt));
        const QByteArray size = file.read(2);
        const qint64 page = static_cast<uchar>(size[0]) << 8 | static_cast<uchar>(size[1]);
        ASSERT_GE(page, 512);
        ASSERT_GT(file.size(), 2 * kept * page);
        ASSERT_TRUE(file.seek(kept * page));
        file.write(QByteArray(file.size() - kept * page, '\xA5'));
    }
    /// The whole of it: the strip cuts what is long.
    static QString lastMessage(test::Console& console) {
        return console.window->strip().messages().index(0, MessageLog::kText).data().toString();
    }
    /// Ends the console's own job, or the one that it came back to.
    static void endJob(test::Console& console) {
        console.confirmer.answer = 0;
        console.window->close();
        ASSERT_TRUE(waitFor([&] { return !console.window->isVisible(); }));
    }
    static client::JobSource smallJob() {
        client::JobSource job;
        job.replicas = "2";
        job.shards = "1";
        job.name = "small";
        return job;
    }
    static bool trains(test::Console& console) {
        return console.session->status().link == Link::kLive && console.feed.hasRun() &&
               console.feed.state().lastCommit && console.feed.state().lastCommit->record.step >= 2;
    }

    QTemporaryDir home;
};

TEST_F(Journey, ADroppedRunFileIsReplayedAndTwoRunsOfItCompared) {
    test::Console console(0, client::Client::open);
    const QString file = console.folder.filePath("runs.db");
    for (const int steps : {60, 40})
        ASSERT_TRUE(test::writeSampleRun(file.toStdString(), steps).ok());
    drop(console, file);
    ASSERT_TRUE(waitFor([&] { return console.session->status().replay; }));
    ASSERT_TRUE(waitFor([&] { return console.session->status().position.has_value(); }));
    EXPECT_TRUE(waitFor([&] { return console.says("not live"); })) << "when it has been read";
    EXPECT_FALSE(console.session->status().canAct());
    ASSERT_TRUE(waitFor([&] { return console.feed.state().finished.has_value(); }));
    EXPECT_EQ(console.feed.state().lastCommit->record.step, 40u) << "it opens at its end";
    EXPECT_TRUE(console.window->strip().explanation().contains("finished after"));
    console.press("Ctrl+Home");
    ASSERT_TRUE(waitFor([&] { return !console.feed.state().lastCommit; }));
    console.press("Ctrl+End");
    ASSERT_TRUE(waitFor([&] { return console.feed.state().lastCommit.has_value(); }));
    console.press("Ctrl+6");
    auto* table = console.view<RunsView>().findChild<QTableView*>();
    ASSERT_TRUE(waitFor([&] { return table->model()->rowCount() == 2; }));
    table->setFocus();
    table->selectAll();
    console.press("Ctrl+M");
    ASSERT_TRUE(waitFor([&] { return console.says("Mean time to rejoin"); }));
    table->selectRow(0);
    console.press("Ctrl+Shift+K");
    EXPECT_TRUE(waitFor([&] { return console.says(": adds up"); }));
}

TEST_F(Journey, ADroppedFileThatIsNoHistoryIsRefusedInWords) {
    test::Console console(0, client::Client::open);
    const QString file = console.folder.filePath("notes.db");
    QFile notes(file);
    ASSERT_TRUE(notes.open(QIODevice::WriteOnly) && notes.write("nothing of the kind") > 0);
    notes.close();
    drop(console, file);
    ASSERT_TRUE(waitFor([&] { return console.session->status().link == Link::kFailed; }));
    EXPECT_TRUE(console.says("notes.db"));
    EXPECT_FALSE(console.session->status().failure->remedy.empty());
}

TEST_F(Journey, AFileThatCannotBeReadLeavesTheJobOnScreenAlone) {
    test::Console console(0, client::Client::open);
    console.session->startEmbedded(smallJob());
    ASSERT_TRUE(waitFor([&] { return trains(console); }));
    const QString file = console.folder.filePath("notes.db");
    QFile notes(file);
    ASSERT_TRUE(notes.open(QIODevice::WriteOnly) && notes.write("nothing of the kind") > 0);
    notes.close();
    drop(console, file);
    ASSERT_TRUE(waitFor([&] { return console.says("notes.db"); }));
    EXPECT_TRUE(console.confirmer.asked.empty()) << "nobody is asked to give up the job for it";
    client::JobSource noJob;
    noJob.file = "/nowhere/job.toml";
    EXPECT_FALSE(console.session->canRead(noJob));
    EXPECT_TRUE(console.session->status().canAct());
    // A sound one asks, and is not opened when the job is to stay.
    const QString runs = console.folder.filePath("runs.db");
    ASSERT_TRUE(test::writeSampleRun(runs.toStdString(), 20).ok());
    drop(console, runs);
    ASSERT_TRUE(waitFor([&] { return console.confirmer.asked.size() == 1; }));
    EXPECT_TRUE(console.session->status().canAct());
    console.confirmer.answer = 0;  // stop with a checkpoint
    drop(console, runs);
    EXPECT_TRUE(waitFor([&] { return console.session->status().replay; }));
}

TEST_F(Journey, AFileWithDamagedPagesCostsTheLiveSessionNothing) {
    test::Console console(0, client::Client::open);
    console.session->startEmbedded(smallJob());
    ASSERT_TRUE(waitFor([&] { return trains(console); }));
    // Such files fail when the daemon starts, or only when it reads the run.
    for (const qint64 kept : {1, 30}) {
        const QString file = console.folder.filePath(QStringLiteral("damaged%1.db").arg(kept));
        ASSERT_TRUE(test::writeSampleRun(file.toStdString(), 400).ok());
        overwritePages(file, kept);
        drop(console, file);
        ASSERT_TRUE(waitFor([&] { return lastMessage(console).contains(file); }));
        EXPECT_TRUE(lastMessage(console).contains(": damaged ("))
            << qPrintable(lastMessage(console));
        EXPECT_TRUE(lastMessage(console).contains("Restore a copy"));
        EXPECT_EQ(lastMessage(console).contains("Cannot start"), kept == 1)
            << qPrintable(lastMessage(console));
        EXPECT_TRUE(console.confirmer.asked.empty()) << "nobody is asked to give up the job for it";
        EXPECT_FALSE(console.session->status().opening);
        EXPECT_TRUE(console.session->status().canAct());
    }
    const uint64_t step = console.feed.state().lastCommit->record.step;
    EXPECT_TRUE(waitFor([&] { return console.feed.state().lastCommit->record.step > step; }));
    endJob(console);
}

TEST_F(Journey, FromAFileThatIsDamagedLaterOneClickLeadsBackToTheLiveSession) {
    test::Console console(0, client::Client::open);
    console.session->startEmbedded(smallJob());
    ASSERT_TRUE(waitFor([&] { return trains(console); }));
    const std::string run = console.session->status().job->run;
    const QString file = console.folder.filePath("later.db");
    ASSERT_TRUE(test::writeSampleRun(file.toStdString(), 60).ok());
    console.confirmer.answer = 1;  // keep running
    drop(console, file);
    ASSERT_TRUE(waitFor([&] { return console.session->status().offline; }));
    EXPECT_TRUE(console.session->status().replay);
    EXPECT_EQ(console.feed.state().lastCommit->record.step, 60u);
    console.press("Ctrl+6");
    auto* runs = console.view<RunsView>().findChild<QTableView*>();
    ASSERT_TRUE(waitFor([&] { return runs->model()->rowCount() == 1; }));
    overwritePages(file, 1);
    runs->selectRow(0);
    console.press("Ctrl+Shift+K");
    ASSERT_TRUE(waitFor([&] { return console.says("later.db"); }));
    EXPECT_TRUE(console.session->status().replay) << "what has been read stays";
    auto* back = qobject_cast<QToolButton*>(console.named("Leave the replay"));
    ASSERT_NE(back, nullptr);
    EXPECT_EQ(back->text(), "Back to live");
    back->click();
    ASSERT_TRUE(waitFor([&] { return trains(console); }));
    EXPECT_EQ(console.session->status().job->run, run);
    EXPECT_TRUE(console.session->status().canAct());
    endJob(console);
}

TEST_F(Journey, ADroppedJobFileIsOfferedForStarting) {
    test::Console console(0, client::Client::open);
    drop(console, "/some/job.toml");
    auto* dialog = console.window->findChild<JobDialog*>();
    ASSERT_NE(dialog, nullptr);
    EXPECT_EQ(dialog->source().file, "/some/job.toml");
}

TEST_F(Journey, ClosingAsksAndTheJobGoesOnAndIsComeBackTo) {
    test::Console first(0, client::Client::open);
    first.session->startEmbedded(smallJob());
    ASSERT_TRUE(waitFor([&] { return trains(first); }));
    const std::string run = first.session->status().job->run;

    first.window->close();  // cancelled: nothing happens
    ASSERT_EQ(first.confirmer.asked.size(), 1u);
    EXPECT_EQ(first.confirmer.asked[0].choices,
              QStringList({"Stop with a checkpoint", "Keep running"}));
    EXPECT_TRUE(first.window->isVisible());
    EXPECT_TRUE(first.session->status().canAct());

    first.confirmer.answer = 1;  // go on
    first.window->close();
    ASSERT_TRUE(waitFor([&] { return !first.window->isVisible(); }));
    const QString target = first.settings->value("embedded/goesOnAt").toString();
    ASSERT_TRUE(target.startsWith("unix:"));
    first.session->close();
    ASSERT_TRUE(QFileInfo::exists(target.mid(5)));

    test::Console next(0, client::Client::open, &first);
    next.press("Ctrl+N");
    ASSERT_TRUE(waitFor([&] { return trains(next); }));
    EXPECT_EQ(next.session->status().job->run, run);
    EXPECT_TRUE(next.session->status().embedded);

    next.confirmer.answer = 0;  // stop with a checkpoint
    next.window->close();
    ASSERT_TRUE(waitFor([&] { return !next.window->isVisible(); }));
    EXPECT_FALSE(next.settings->contains("embedded/goesOnAt"));
    EXPECT_TRUE(waitFor([&] { return !QFileInfo::exists(target.mid(5)); }));
}

TEST_F(Journey, StoppingOnCloseLeavesACheckpointThatTheRunIsResumedFrom) {
    const QString file = home.filePath("kept.db");
    std::string run;
    uint64_t step = 0;
    {
        test::Console console(0, client::Client::open);
        console.session->startEmbedded(smallJob(), 1, file);
        ASSERT_TRUE(waitFor([&] { return trains(console); }));
        run = console.session->status().job->run;
        step = console.feed.state().lastCommit->record.step;
        console.confirmer.answer = 0;
        console.window->close();
        ASSERT_TRUE(waitFor([&] { return !console.window->isVisible(); }));
    }
    test::Console console(0, client::Client::open);
    client::JobSource job = smallJob();
    job.resume = run;
    console.session->startEmbedded(job, 1, file);
    ASSERT_TRUE(waitFor([&] { return trains(console); }));
    EXPECT_GT(console.feed.state().lastCommit->record.step, step);
    EXPECT_FALSE(console.feed.state().resumedFrom.empty());
    console.confirmer.answer = 0;
    console.window->close();
    ASSERT_TRUE(waitFor([&] { return !console.window->isVisible(); }));
}

TEST_F(Journey, WhatWentOnAndIsGoneDoesNotKeepTheDemoFromStarting) {
    test::Console console(0, client::Client::open);
    console.settings->setValue("embedded/goesOnAt", "unix:" + console.folder.filePath("gone.sock"));
    console.press("Ctrl+N");
    ASSERT_TRUE(waitFor([&] { return trains(console); }));
    EXPECT_TRUE(console.session->status().embedded);
    console.confirmer.answer = 0;
    console.window->close();
    ASSERT_TRUE(waitFor([&] { return !console.window->isVisible(); }));
}

/// The console as a program of its own, which ends by a signal.
class Ending : public Journey, public testing::WithParamInterface<int> {
  protected:
    /// Its daemon; 0 before there is one.
    static qint64 childOf(qint64 pid) {
        for (const QString& task : QDir(QStringLiteral("/proc/%1/task").arg(pid))
                                       .entryList(QDir::Dirs | QDir::NoDotAndDotDot)) {
            QFile children(QStringLiteral("/proc/%1/task/%2/children").arg(pid).arg(task));
            if (!children.open(QIODevice::ReadOnly)) continue;
            const auto pids = children.readAll().split(' ');
            if (const qint64 child = pids.front().toLongLong(); child != 0) return child;
        }
        return 0;
    }
    /// Nobody may be there to bury it.
    static bool isGone(qint64 pid) {
        QFile stat(QStringLiteral("/proc/%1/stat").arg(pid));
        return !stat.open(QIODevice::ReadOnly) || stat.readAll().contains(") Z ");
    }
    QStringList sockets() const {
        QStringList found;
        QDirIterator all(home.path(), {"bulkhead.sock"}, QDir::System | QDir::Files,
                         QDirIterator::Subdirectories);
        while (all.hasNext()) found << all.next();
        return found;
    }
    void expectNothingIsLeft(const QStringList& arguments) {
        QProcess program;
        QProcessEnvironment environment = QProcessEnvironment::systemEnvironment();
        environment.insert("TMPDIR", home.path());
        environment.insert("XDG_CONFIG_HOME", home.path());
        environment.insert("QT_QPA_PLATFORM", "offscreen");
        program.setProcessEnvironment(environment);
        program.start(BULKHEAD_BIN "/bulkhead", arguments);
        ASSERT_TRUE(program.waitForStarted());
        ASSERT_TRUE(waitFor([&] { return !sockets().isEmpty(); }));
        // The kernel may leave a child out of the list while another one ends.
        qint64 daemon = 0;
        ASSERT_TRUE(waitFor([&] { return (daemon = childOf(program.processId())) != 0; }));
        EXPECT_FALSE(isGone(daemon));
        ASSERT_EQ(::kill(static_cast<pid_t>(program.processId()), GetParam()), 0);
        EXPECT_TRUE(waitFor([&] { return isGone(daemon); }));
        EXPECT_TRUE(waitFor([&] { return program.state() == QProcess::NotRunning; }));
        EXPECT_EQ(program.exitStatus() == QProcess::NormalExit, GetParam() == SIGTERM);
        EXPECT_THAT(sockets(), testing::IsEmpty());
    }
};

TEST_P(Ending, TheReaderOfARunFileEndsWithTheConsole) {
    const QString file = home.filePath("runs.db");
    ASSERT_TRUE(test::writeSampleRun(file.toStdString(), 20).ok());
    expectNothingIsLeft({"--open", file});
}

TEST_P(Ending, AJobOfItsOwnEndsWithTheConsole) {
    expectNothingIsLeft({});
}

INSTANTIATE_TEST_SUITE_P(By, Ending, testing::Values(SIGTERM, SIGKILL),
                         [](const auto& info) { return info.param == SIGTERM ? "Term" : "Kill"; });

}  // namespace
}  // namespace bulkhead::ui
