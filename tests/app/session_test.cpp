// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QSettings>
#include <QSignalSpy>
#include <QTemporaryDir>
#include <thread>

#include "app/session/mailbox.h"
#include "app/session/recents.h"
#include "tests/app/support/console.h"

namespace bulkhead::ui {
namespace {

std::vector<model::Event> numbered(size_t count) {
    return std::vector<model::Event>(count);
}

TEST(Mailbox, WakesOnceHoweverMuchComes) {
    int woken = 0;
    Mailbox box([&] { ++woken; });
    box.putEvents(numbered(3));
    box.putEvents(numbered(2));
    EXPECT_EQ(woken, 1);
    EXPECT_EQ(box.take().events.size(), 5u);
    box.putEvents(numbered(1));
    EXPECT_EQ(woken, 2);
}

TEST(Mailbox, OverflowsInsteadOfGrowing) {
    Mailbox box([] {});
    box.putEvents(numbered(Mailbox::kMaxEvents));
    box.putEvents(numbered(1));
    box.putEvents(numbered(1));
    const Delivery delivery = box.take();
    EXPECT_TRUE(delivery.overflowed);
    EXPECT_TRUE(delivery.events.empty());
}

TEST(Mailbox, ASnapshotVoidsTheEventsBeforeIt) {
    Mailbox box([] {});
    box.putEvents(numbered(4));
    box.putSnapshot(std::make_shared<model::RunState>());
    box.putEvents(numbered(1));
    const Delivery delivery = box.take();
    EXPECT_NE(delivery.snapshot, nullptr);
    EXPECT_EQ(delivery.events.size(), 1u);
}

TEST(Mailbox, ASnapshotWakesAlthoughSomethingWaits) {
    int woken = 0;
    Mailbox box([&] { ++woken; });
    box.putPosition({});
    EXPECT_FALSE(box.hasSnapshot());
    box.putSnapshot(std::make_shared<model::RunState>());
    EXPECT_TRUE(box.hasSnapshot());
    box.putEvents(numbered(1));
    box.putSnapshot(std::make_shared<model::RunState>());
    EXPECT_EQ(woken, 2);
    (void)box.take();
    EXPECT_FALSE(box.hasSnapshot());
}

TEST(Mailbox, TakesFromManyThreadsWithoutLosing) {
    Mailbox box([] {});
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&box] {
            for (int i = 0; i < 100; ++i) box.putEvents(numbered(1));
        });
    threads.clear();
    EXPECT_EQ(box.take().events.size(), 400u);
}

TEST(Recents, KeepNewestFirstAndForget) {
    const QTemporaryDir folder;
    QSettings settings(folder.filePath("r.ini"), QSettings::IniFormat);
    Recents recents(settings);
    recents.remember({Recent::Kind::kAddress, "a:1", {}, {}});
    recents.remember({Recent::Kind::kFile, "/runs.db", {}, {}});
    recents.remember({Recent::Kind::kAddress, "a:1", "/token", {}});
    recents.setStatus("a:1", "connected last time");
    ASSERT_EQ(recents.list().size(), 2);
    EXPECT_EQ(recents.list()[0].target, "a:1");
    EXPECT_EQ(recents.list()[0].tokenFile, "/token");
    EXPECT_EQ(recents.list()[0].lastStatus, "connected last time");
    recents.forget("a:1");
    EXPECT_EQ(recents.list()[0].kind, Recent::Kind::kFile);
}

TEST(Session, FollowsTheFirstJobItIsTold) {
    test::Console console(10);
    EXPECT_EQ(console.log->watched->job, "demo");
    EXPECT_EQ(console.session->status().link, Link::kLive);
    EXPECT_EQ(console.feed.state().lastCommit->record.step, 10u);
    console.send(console.run.nextStep());
    EXPECT_EQ(console.feed.state().lastCommit->record.step, 11u);
}

TEST(Session, WhatAMoveWithinAReplayBringsDoesNotWaitForTheNextTenthOfASecond) {
    test::Console console(10);
    console.session->replayRun(QStringLiteral("demo"));
    QSignalSpy changed(console.session.get(), &Session::statusChanged);
    while (!console.session->status().replay && changed.wait(5000)) {
    }
    ASSERT_TRUE(console.log->replay.onSnapshot);
    model::ReplayPosition position;
    position.step = 7;
    console.log->replay.onPosition(position);
    while (console.session->status().position->step != 7 && changed.wait(5000)) {
    }
    model::ReplayControl order;
    order.seekStep = 5;
    console.session->controlReplay(order);
    const auto moved = std::make_shared<model::RunState>(*console.log->state);
    moved->seq = 3;
    console.log->replay.onSnapshot(moved);
    console.settle();
    EXPECT_EQ(console.feed.state().seq, 3u);
}

TEST(Session, CountsDownToTheNextAttemptAndRetriesAtOnceWhenAsked) {
    test::Console console(3);
    const auto next = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    console.log->jobs.onDisconnected(
        {client::FailureCode::kUnreachable, "Lost", "nobody listens", "start it", true}, next);
    QSignalSpy changed(console.session.get(), &Session::statusChanged);
    while (console.session->status().link != Link::kReconnecting && changed.wait(5000)) {
    }
    ASSERT_EQ(console.session->status().link, Link::kReconnecting);
    EXPECT_GT(console.session->status().secondsToNextAttempt(std::chrono::steady_clock::now()), 30);
    EXPECT_FALSE(console.session->status().canAct());
    console.actions.find("file.retry")->trigger();
    EXPECT_GE(console.log->retries, 1);
}

TEST(Session, AFailureThatWillNotHealSaysSo) {
    test::Console console(3);
    console.log->jobs.onDisconnected({client::FailureCode::kVersion, "Cannot work together",
                                      "it speaks API 9", "update the console", false},
                                     {});
    QSignalSpy changed(console.session.get(), &Session::statusChanged);
    while (console.session->status().link != Link::kFailed && changed.wait(5000)) {
    }
    EXPECT_EQ(console.session->status().link, Link::kFailed);
    EXPECT_EQ(console.session->status().failure->remedy, "update the console");
}

TEST(Session, AnswersWithoutADaemonAreFailuresNotSilence) {
    RunFeed feed;
    Session session(feed, client::Client::open);
    bool answered = false;
    session.preflight(model::Action{}, [&](client::Result<model::Preflight> result) {
        answered = true;
        EXPECT_FALSE(result.ok());
        EXPECT_FALSE(result.failure().remedy.empty());
    });
    EXPECT_TRUE(answered);
}

}  // namespace
}  // namespace bulkhead::ui
