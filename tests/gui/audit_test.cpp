// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <QComboBox>
#include <QLineEdit>
#include <QTableView>
#include <QTest>

#include "app/models/roles.h"
#include "app/views/audit_view.h"
#include "app/views/job_commands.h"
#include "tests/app/support/console.h"

namespace bulkhead::ui {
namespace {

model::AuditEntry entry(uint64_t seq, const std::string& principal, const std::string& call,
                        const std::string& outcome, const std::string& message) {
    model::AuditEntry out;
    out.seq = seq;
    out.timeNs = test::SampleRun::kStartNs + static_cast<int64_t>(seq) * 1'000'000'000;
    out.principal = principal;
    out.via = principal.empty() ? "" : "token";
    out.peer = "ipv4:10.0.0.7:51234";
    out.call = call;
    out.outcome = outcome;
    out.message = message;
    return out;
}

class Audit : public testing::Test {
  protected:
    Audit() {
        model::AuditEntry stop = entry(2, "anna", "Jobs/StopJob", "ok", "job demo at revision 8");
        stop.object = "demo";
        stop.revision = 7;
        stop.request = "job: \"demo\" with_checkpoint: true";
        model::AuditEntry stranger =
            entry(3, "", "Jobs/ListJobs", "UNAUTHENTICATED", "The token is wrong.");
        stranger.repeated = 12;
        log().audit = {entry(1, "anna", "sign in", "ok", ""), stop, stranger,
                       entry(4, "vera", "Jobs/Act", "PERMISSION_DENIED", "Needs the role operator"),
                       entry(5, "anna", "Jobs/Act", "ABORTED", "The job changed")};
    }
    void show(const std::string& role, int steps = 5) {
        log().server.role = role;
        log().server.principal = "vera";
        if (steps > 0) console.goLive(steps);
        console.press("Alt+0");
    }
    bool awaitRows(int rows) {
        return QTest::qWaitFor([&] { return page().shownRows() == rows; });
    }
    QString at(int row, int column) {
        return table()->model()->index(row, column).data().toString();
    }
    Tone toneAt(int row, int column) {
        return static_cast<Tone>(table()->model()->index(row, column).data(kToneRole).toInt());
    }
    test::FakeClient::Log& log() { return *console.log; }
    AuditView& page() { return console.view<AuditView>(); }
    QTableView* table() { return page().findChild<QTableView*>(); }

    test::Console console;
};

TEST_F(Audit, SaysWhoDidWhatFromWhereAndWithWhatResultNewestFirst) {
    show("admin");
    ASSERT_TRUE(awaitRows(5));
    EXPECT_EQ(at(0, AuditModel::kEffect), "The job changed");
    EXPECT_EQ(at(3, AuditModel::kWho), "anna (token)");
    EXPECT_EQ(at(3, AuditModel::kFrom), "10.0.0.7:51234");
    EXPECT_EQ(at(3, AuditModel::kCall), "Jobs/StopJob");
    EXPECT_EQ(at(3, AuditModel::kJob), "demo");
    EXPECT_EQ(at(3, AuditModel::kRevision), "7");
    EXPECT_EQ(at(3, AuditModel::kResult), "Done");
    EXPECT_EQ(at(3, AuditModel::kEffect), "job demo at revision 8");
    EXPECT_TRUE(console.named("Audit")->isVisible());
    EXPECT_TRUE(console.says("5 of 5"));
}

TEST_F(Audit, WhatWasRefusedAndWhatFailedStandsOut) {
    show("admin");
    ASSERT_TRUE(awaitRows(5));
    EXPECT_EQ(at(0, AuditModel::kResult), "Failed");
    EXPECT_EQ(toneAt(0, AuditModel::kEffect), Tone::kWarning);
    EXPECT_EQ(at(1, AuditModel::kResult), "Refused");
    EXPECT_EQ(toneAt(1, AuditModel::kEffect), Tone::kBad);
    EXPECT_EQ(at(2, AuditModel::kWho), "Unknown");
    EXPECT_TRUE(at(2, AuditModel::kEffect).contains("12 more"));
    qobject_cast<QComboBox*>(console.named("Results"))->setCurrentIndex(2);
    EXPECT_EQ(page().shownRows(), 2);
    EXPECT_TRUE(console.says("2 of 5"));
}

TEST_F(Audit, ATextIsLookedForInEachColumnAndInTheRequest) {
    show("admin");
    ASSERT_TRUE(awaitRows(5));
    auto* filter = qobject_cast<QLineEdit*>(console.named("Filter the audit by text"));
    ASSERT_NE(filter, nullptr);
    QTest::keyClicks(filter, "VERA");
    EXPECT_TRUE(awaitRows(1));
    filter->setText("with_checkpoint");
    EXPECT_TRUE(QTest::qWaitFor([&] { return at(0, AuditModel::kCall) == "Jobs/StopJob"; }));
    filter->setText("nobody of this name");
    EXPECT_TRUE(awaitRows(0));
}

TEST_F(Audit, WhatIsAddedAppearsAbove) {
    show("admin");
    ASSERT_TRUE(awaitRows(5));
    log().audit.push_back(entry(6, "olga", "Jobs/StartJob", "ok", "job next"));
    ASSERT_TRUE(awaitRows(6));
    EXPECT_EQ(at(0, AuditModel::kWho), "olga (token)");
    EXPECT_EQ(at(5, AuditModel::kCall), "sign in");
}

TEST_F(Audit, OthersReadWhichRoleIsNeeded) {
    show("operator");
    EXPECT_TRUE(console.says("It needs the role admin"));
    EXPECT_TRUE(console.says("vera has the role operator"));
    EXPECT_EQ(page().shownRows(), 0);
    EXPECT_FALSE(console.actions.find("audit.check")->isEnabled());
    // Nothing of it stays for somebody who may no longer read it.
    show("admin", 0);
    log().jobs.onConnected(log().server);
    ASSERT_TRUE(awaitRows(5));
    log().server.role = "viewer";
    log().jobs.onConnected(log().server);
    EXPECT_TRUE(awaitRows(0));
    EXPECT_TRUE(QTest::qWaitFor([&] { return console.says("vera has the role viewer"); }));
}

TEST_F(Audit, AnAuditThatCannotBeReadSaysWhyUntilItCan) {
    log().noAudit = {client::FailureCode::kServer, "Cannot read the audit", "The disk is gone.",
                     "Mount it.", true};
    show("admin");
    EXPECT_TRUE(QTest::qWaitFor([&] { return console.says("The disk is gone."); }));
    log().noAudit.reset();
    EXPECT_TRUE(awaitRows(5));
}

TEST_F(Audit, ItsChainIsChecked) {
    show("admin");
    ASSERT_TRUE(awaitRows(5));
    console.press("Ctrl+Alt+A");
    EXPECT_TRUE(QTest::qWaitFor([&] { return console.says("5 entries, the chain holds"); }));
    log().auditBrokenAt = 3;
    console.press("Ctrl+Alt+A");
    EXPECT_TRUE(QTest::qWaitFor([&] { return console.says("breaks at entry 3 of 5"); }));
}

}  // namespace
}  // namespace bulkhead::ui
