// SPDX-License-Identifier: Apache-2.0
#include "backend/client/ledger_check.h"

#include <gtest/gtest.h>

namespace bulkhead::client {
namespace {

model::Event commit(uint64_t step, std::vector<SampleRange> ranges) {
    model::StepCommitted body;
    body.record.step = step;
    body.record.contributors.push_back({0, 1, std::move(ranges)});
    model::Event event;
    event.body = body;
    return event;
}

TEST(LedgerCheckTest, RangesThatTileAddUp) {
    LedgerCheck check;
    check.add(commit(1, {{0, 0, 4}, {1, 0, 2}}));
    check.add(commit(2, {{0, 4, 8}, {1, 2, 4}}));
    const LedgerReport report = check.report();
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(report.steps, 2u);
    EXPECT_EQ(report.samples, 12u);
    EXPECT_EQ(report.open, 0u);
}

TEST(LedgerCheckTest, ASampleCommittedTwiceDoesNot) {
    LedgerCheck check;
    check.add(commit(1, {{0, 0, 4}}));
    check.add(commit(2, {{0, 3, 8}}));
    EXPECT_FALSE(check.report().ok());
    EXPECT_EQ(check.report().twice, 1u);
}

TEST(LedgerCheckTest, WhatWasHandedBackAndNotUsedIsOpen) {
    LedgerCheck check;
    check.add(commit(1, {{0, 0, 4}}));
    check.add(commit(2, {{0, 6, 8}}));
    EXPECT_TRUE(check.report().ok());
    EXPECT_EQ(check.report().open, 2u);
}

TEST(LedgerCheckTest, ARollbackTakesItsStepsBack) {
    LedgerCheck check;
    check.add(commit(1, {{0, 0, 4}}));
    check.add(commit(2, {{0, 4, 8}}));
    model::Event opened;
    opened.body = model::LineageOpened{.lineage = 2, .fromStep = 1, .term = 2, .why = ""};
    check.add(opened);
    check.add(commit(2, {{0, 4, 8}}));
    EXPECT_TRUE(check.report().ok());
    EXPECT_EQ(check.report().samples, 8u);
}

TEST(LedgerCheckTest, AResumedRunBeginsWhereTheEarlierOneEnded) {
    LedgerCheck check;
    model::Event opened;
    opened.body = model::LineageOpened{.lineage = 1, .fromStep = 50, .term = 1, .why = ""};
    check.add(opened);
    check.add(commit(51, {{0, 200, 204}}));
    check.add(commit(52, {{0, 204, 208}}));
    EXPECT_TRUE(check.report().ok());
    EXPECT_EQ(check.report().open, 0u);
}

TEST(LedgerCheckTest, AnInvariantTheRunReportedCounts) {
    LedgerCheck check;
    model::Event event;
    event.body = model::InvariantBroken{.invariant = "I3", .detail = ""};
    check.add(event);
    EXPECT_FALSE(check.report().ok());
}

}  // namespace
}  // namespace bulkhead::client
