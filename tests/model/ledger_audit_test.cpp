// SPDX-License-Identifier: Apache-2.0
#include "backend/model/ledger_audit.h"

#include <gtest/gtest.h>

namespace bulkhead::model {
namespace {

Event commit(uint64_t step, std::vector<SampleRange> ranges, uint64_t lineage = 1) {
    StepCommitted body;
    body.record.lineage = lineage;
    body.record.step = step;
    for (const SampleRange& range : ranges) body.record.samples += range.end - range.begin;
    body.record.contributors.push_back({0, 1, std::move(ranges)});
    Event event;
    event.body = body;
    return event;
}

TEST(LedgerAuditTest, RangesThatTileAddUp) {
    LedgerAudit check;
    check.add(commit(1, {{0, 0, 4}, {1, 0, 2}}));
    check.add(commit(2, {{0, 4, 8}, {1, 2, 4}}));
    const LedgerReport report = check.report({});
    EXPECT_TRUE(report.ok);
    EXPECT_EQ(report.steps, 2u);
    EXPECT_EQ(report.samples, 12u);
    EXPECT_EQ(report.open, 0u);
}

TEST(LedgerAuditTest, ASampleCommittedTwiceDoesNot) {
    LedgerAudit check;
    check.add(commit(1, {{0, 0, 4}}));
    check.add(commit(2, {{0, 3, 8}}));
    EXPECT_FALSE(check.report({}).ok);
    EXPECT_EQ(check.report({}).twice, 1u);
}

TEST(LedgerAuditTest, WhatWasHandedBackAndNotUsedIsOpen) {
    LedgerAudit check;
    check.add(commit(1, {{0, 0, 4}}));
    check.add(commit(2, {{0, 6, 8}}));
    EXPECT_TRUE(check.report({}).ok);
    EXPECT_EQ(check.report({}).open, 2u);
}

TEST(LedgerAuditTest, ARollbackTakesItsStepsBack) {
    LedgerAudit check;
    check.add(commit(1, {{0, 0, 4}}));
    check.add(commit(2, {{0, 4, 8}}));
    Event opened;
    opened.body = LineageOpened{.lineage = 2, .fromStep = 1, .term = 2, .why = ""};
    check.add(opened);
    check.add(commit(2, {{0, 4, 8}}, 2));
    EXPECT_TRUE(check.report({}).ok);
    EXPECT_EQ(check.report({}).samples, 8u);
}

TEST(LedgerAuditTest, AResumedRunBeginsWhereTheEarlierOneEnded) {
    LedgerAudit check;
    Event opened;
    opened.body = LineageOpened{.lineage = 1, .fromStep = 50, .term = 1, .why = ""};
    check.add(opened);
    check.add(commit(51, {{0, 200, 204}}));
    check.add(commit(52, {{0, 204, 208}}));
    EXPECT_TRUE(check.report({}).ok);
    EXPECT_EQ(check.report({}).open, 0u);
}

TEST(LedgerAuditTest, AnInvariantTheRunReportedCounts) {
    LedgerAudit check;
    Event event;
    event.body = InvariantBroken{.invariant = "I3", .detail = ""};
    check.add(event);
    EXPECT_FALSE(check.report({}).ok);
}

/// A run whose chain holds: two lineages, a dispute, parity at every step.
std::vector<Event> chainedRun() {
    std::vector<Event> events;
    std::string link;
    const auto add = [&](auto body, Chained what) {
        body.link = link = chainLink(link, std::move(what));
        Event event;
        event.seq = events.size() + 1;
        event.body = std::move(body);
        events.push_back(std::move(event));
    };
    const auto open = [&](uint64_t lineage, uint64_t from) {
        LineageOpened opened;
        opened.lineage = lineage;
        opened.fromStep = from;
        add(opened, LineageLink{lineage, from});
    };
    const auto step = [&](uint64_t lineage, uint64_t n) {
        StepCommitted body;
        body.record.lineage = lineage;
        body.record.step = n;
        body.record.contributors.push_back({0, 1, {{0, 4 * n - 4, 4 * n}}});
        body.record.samples = 4;
        body.loss = 5.0 / static_cast<double>(n);
        body.parity = {{{n, n + 1}, {0, 1}, {1, 1}}};
        add(body, StepLink{body.record, body.loss, body.gradNorm, body.parity});
    };
    open(1, 0);
    for (uint64_t n = 1; n <= 5; ++n) step(1, n);
    ParityDispute dispute{1, 5, 1, 1, 0, {{{1, 2}, {0, 2}, {1, 1}}, {{1, 3}, {1}, {1}}}, {1}};
    add(ParityDisputed{dispute, ""}, dispute);
    open(2, 3);
    for (uint64_t n = 4; n <= 8; ++n) step(2, n);
    return events;
}

LedgerReport audit(const std::vector<Event>& events,
                   const std::optional<std::vector<LogLink>>& log = {}) {
    LedgerAudit audit;
    for (const Event& event : events) audit.add(event);
    return audit.report(log);
}

std::vector<LogLink> logOf(const std::vector<Event>& events) {
    std::vector<LogLink> log;
    for (const Event& event : events)
        if (const auto* step = std::get_if<StepCommitted>(&event.body))
            log.push_back({step->record.lineage, step->record.step, step->link});
    return log;
}

TEST(LedgerAuditTest, HowOftenStatesAreComparedIsSaidWithItsReason) {
    EXPECT_EQ(paceText({8, 38, 420}),
              "states are compared every 8 steps: a hash takes 38 ms, a step 420 ms");
    EXPECT_EQ(paceText({1, 1, 420}),
              "states are compared at every step: a hash takes 1 ms, a step 420 ms");
}

TEST(LedgerAuditTest, AChainThatHoldsAddsUp) {
    const std::vector<Event> events = chainedRun();
    const LedgerReport report = audit(events, logOf(events));
    EXPECT_TRUE(report.ok) << (report.findings.empty() ? "" : report.findings[0].what);
    EXPECT_EQ(report.steps, 8u);
    EXPECT_EQ(report.links, events.size());
    EXPECT_EQ(report.logStep, 8u);
    EXPECT_EQ(report.compared, 10u);
    const std::vector<std::string> parity = {
        "after steps 0 to 4 r0 r1 agree",
        "after step 5 states differ: r0 r2 agree, r1 (incarnation 1) differs in shard 1; "
        "expelled: r1",
        "after steps 3 to 7 r0 r1 agree"};
    EXPECT_EQ(report.parity, parity);
}

TEST(LedgerAuditTest, WhateverIsTakenOutChangedOrMovedIsFound) {
    const std::vector<Event> sound = chainedRun();
    for (size_t i = 0; i + 1 < sound.size(); ++i) {
        std::vector<Event> events = sound;
        events.erase(events.begin() + static_cast<ptrdiff_t>(i));
        EXPECT_FALSE(audit(events).ok) << "without event " << i + 1;
        events = sound;
        std::swap(events[i], events[i + 1]);
        EXPECT_FALSE(audit(events).ok) << "with event " << i + 1 << " behind the next";
    }
    for (size_t i = 0; i < sound.size(); ++i) {
        std::vector<Event> events = sound;
        auto* step = std::get_if<StepCommitted>(&events[i].body);
        if (step == nullptr) continue;
        step->loss *= 2;
        const LedgerReport report = audit(events);
        ASSERT_EQ(report.findings.size(), 1u);
        EXPECT_EQ(report.findings[0].step, step->record.step);
        step->loss /= 2;
        step->parity.clear();
        EXPECT_FALSE(audit(events).ok);
        events = sound;
        std::get<StepCommitted>(events[i].body).link.clear();
        EXPECT_FALSE(audit(events).ok);
    }
}

TEST(LedgerAuditTest, ACutOffEndIsFoundByTheLog) {
    const std::vector<Event> sound = chainedRun();
    std::vector<Event> events(sound.begin(), sound.end() - 2);
    EXPECT_TRUE(audit(events).ok);
    const LedgerReport report = audit(events, logOf(sound));
    ASSERT_EQ(report.findings.size(), 1u);
    EXPECT_EQ(report.findings[0].what,
              "the run file ends at step 6 of the log's 8: its last 2 commits are missing");
}

TEST(LedgerAuditTest, NothingRecordedAddsUpOnlyBesideALog) {
    const LedgerReport lost = LedgerAudit().report(std::nullopt);
    EXPECT_FALSE(lost.ok);
    ASSERT_EQ(lost.findings.size(), 1u);
    EXPECT_EQ(lost.findings[0].what,
              "no step is recorded, and no commit log is there: nothing can be checked");
    EXPECT_EQ(ledgerText(lost).find("chained"), std::string::npos);
    EXPECT_TRUE(LedgerAudit().report(std::vector<LogLink>{}).ok);
}

/// The log's disk lost steps 6 to 8; the job went back to step 5, which both have.
TEST(LedgerAuditTest, OfALogThatLostItsEndOnlyTheLossIsTold) {
    std::vector<Event> events = chainedRun();
    std::vector<LogLink> log = logOf(events);
    log.resize(log.size() - 3);
    const std::string at = log.back().link;
    EXPECT_EQ(log.back().step, 5u);
    Event lost;
    lost.body = InvariantBroken{.invariant = "I6", .detail = "the commit log ends with step 5"};
    events.push_back(lost);
    LineageOpened opened;
    opened.lineage = 3;
    opened.fromStep = 5;
    opened.link = chainLink(at, LineageLink{3, 5});
    Event event;
    event.body = opened;
    events.push_back(event);
    LedgerReport report = audit(events, log);
    ASSERT_EQ(report.findings.size(), 1u) << report.findings[1].what;
    EXPECT_NE(report.findings[0].remedy.find("keep this run file"), std::string::npos);
    std::get<LineageOpened>(events.back().body).link[0] ^= 1;
    EXPECT_EQ(audit(events, log).findings.size(), 2u) << "it follows nothing";
    events.erase(events.end() - 2);
    std::get<LineageOpened>(events.back().body).link[0] ^= 1;
    EXPECT_GT(audit(events, log).findings.size(), 2u) << "nobody said so";
}

TEST(LedgerAuditTest, OfALogThatWasCutTheRunFileIsNotAccused) {
    const std::vector<Event> events = chainedRun();
    std::vector<LogLink> log = logOf(events);
    log.resize(log.size() - 2);
    LedgerReport report = audit(events, log);
    ASSERT_EQ(report.findings.size(), 1u);
    EXPECT_EQ(report.findings[0].what,
              "the commit log ends with step 6, and the run file goes on to 8 in a chain that "
              "holds: the log has lost its end");
    EXPECT_NE(report.findings[0].remedy.find("keep this run file"), std::string::npos);
    // In the middle it is the run file that has too much.
    log = logOf(events);
    log.erase(log.end() - 2);
    report = audit(events, log);
    ASSERT_EQ(report.findings.size(), 1u);
    EXPECT_EQ(report.findings[0].what, "step 7 of lineage 2 is not in the commit log");
}

TEST(LedgerAuditTest, AChainMadeAnewIsFoundByTheLog) {
    const std::vector<Event> sound = chainedRun();
    std::vector<Event> events = sound;
    std::string link;
    for (Event& event : events) {
        if (auto* opened = std::get_if<LineageOpened>(&event.body))
            opened->link = link = chainLink(link, LineageLink{opened->lineage, opened->fromStep});
        if (auto* disputed = std::get_if<ParityDisputed>(&event.body))
            disputed->link = link = chainLink(link, disputed->dispute);
        if (auto* step = std::get_if<StepCommitted>(&event.body)) {
            if (step->record.step == 7) step->loss = 0;
            step->link = link =
                chainLink(link, StepLink{step->record, step->loss, step->gradNorm, step->parity});
        }
    }
    EXPECT_TRUE(audit(events).ok);
    const LedgerReport report = audit(events, logOf(sound));
    ASSERT_FALSE(report.ok);
    EXPECT_EQ(report.findings[0].step, 7u);
}

TEST(LedgerAuditTest, ARunOlderThanTheChainIsCountedAndSaidToBe) {
    std::vector<Event> events = {commit(1, {{0, 0, 4}}), commit(2, {{0, 4, 8}}),
                                 commit(3, {{0, 8, 12}})};
    LedgerReport report = audit(events);
    EXPECT_TRUE(report.ok);
    EXPECT_NE(ledgerText(report).find("before steps were chained"), std::string::npos);
    events.erase(events.begin() + 1);
    report = audit(events);
    ASSERT_EQ(report.findings.size(), 1u);
    EXPECT_EQ(report.findings[0].what,
              "step 2 is missing: deleted after the coordinator recorded it");
}

}  // namespace
}  // namespace bulkhead::model
