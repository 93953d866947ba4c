// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <fstream>
#include <iterator>

#include <random>

#include "backend/common/codec.h"
#include "backend/runtime/protocol/commit_log.h"
#include "backend/runtime/protocol/data_ledger.h"

namespace bulkhead::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LedgerTest, FreshSamplesGoRoundRobinOrByWeight) {
    DataLedger even(2);
    EXPECT_THAT(*even.lease(1, 0, 4), ElementsAre(SampleRange{0, 0, 2}, SampleRange{1, 0, 2}));
    DataLedger weighted(2, {3, 1});
    EXPECT_THAT(*weighted.lease(1, 0, 8), ElementsAre(SampleRange{0, 0, 6}, SampleRange{1, 0, 2}));
    DataLedger second(2, {1, 3});
    EXPECT_THAT(*second.lease(1, 0, 2), ElementsAre(SampleRange{1, 0, 2})) << "it has most to go";
    DataLedger none(2, {-1, 1});
    EXPECT_THAT(*none.lease(1, 0, 3), ElementsAre(SampleRange{1, 0, 3})) << "of no part nothing";
}

TEST(LedgerTest, AVoidQuorumReturnsItsLeasesAndTheyComeFirst) {
    DataLedger l(1);
    const auto first = *l.lease(1, 0, 4);
    (void)l.lease(1, 1, 4);
    EXPECT_EQ(l.giveBack(1, 0), 4u);
    EXPECT_EQ(*l.lease(2, 2, 4), first);
    EXPECT_TRUE(l.check().ok());
}

TEST(LedgerTest, ACommitConsumesWhatItNamesAndReturnsTheRestOfItsStep) {
    DataLedger l(1);
    CommitRecord r;
    r.step = 1;
    r.contributors = {{0, 1, *l.lease(1, 0, 4)}};
    (void)l.lease(1, 1, 4);
    ASSERT_TRUE(l.commit(r).ok());
    EXPECT_EQ(l.committedSamples(), 4u);
    EXPECT_EQ(l.pooledSamples(), 4u);
    EXPECT_FALSE(l.commit(r).ok());  // those leases are gone
    EXPECT_TRUE(l.check().ok());
}

TEST(LedgerTest, AnyOrderOfOperationsKeepsThePartitionAndSurvivesStorage) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
        std::mt19937_64 rng(seed);
        DataLedger l(3, {1, 2, 0.5});
        for (uint64_t i = 0; i < 300; ++i) {
            const uint64_t step = rng() % 4;
            const auto replica = static_cast<int32_t>(rng() % 4);
            switch (rng() % 6) {
                case 0:
                case 1:
                    (void)l.lease(step, replica, rng() % 9);
                    break;
                case 2:
                    l.giveBack(step, replica);
                    break;
                case 3:
                    (void)l.swapLeases(step, replica, static_cast<int32_t>(rng() % 4));
                    break;
                case 4: {
                    CommitRecord r;
                    r.step = step;
                    for (int32_t c = 0; c < 4; ++c)
                        if (const auto* held = l.leased(step, c); held && rng() % 2 == 0)
                            r.contributors.push_back({c, 1, *held});
                    ASSERT_TRUE(l.commit(r).ok());
                    break;
                }
                default:
                    if (const auto* held = l.leased(step, replica); held && !held->empty()) {
                        SampleRange part = held->front();
                        part.begin += rng() % (part.end - part.begin);
                        ASSERT_TRUE(l.quarantine(part).ok());
                    }
            }
            ASSERT_TRUE(l.check().ok()) << l.check() << " seed " << seed << " operation " << i;
        }
        const auto stored = decode<LedgerState>(encode(l.state()));
        ASSERT_TRUE(stored.ok());
        auto again = DataLedger::restore(*stored, {1, 2, 0.5});
        ASSERT_TRUE(again.ok()) << again.status();
        EXPECT_EQ(encode(again->state()), encode(l.state()));
    }
}

TEST(LedgerTest, AStateThatIsNoPartitionIsRefused) {
    LedgerState s;
    s.highWater = {10};
    s.committed = {{0, 0, 6}};
    EXPECT_FALSE(DataLedger::restore(s, {}).ok());  // 6..10 is nowhere
    s.pooled = {{0, 5, 10}};
    EXPECT_FALSE(DataLedger::restore(s, {}).ok());  // 5 is twice
    s.pooled = {{0, 6, 10}};
    EXPECT_TRUE(DataLedger::restore(s, {}).ok());
    s.quarantined = {{0, 0, 1}};
    EXPECT_FALSE(DataLedger::restore(s, {}).ok()) << "0 is twice, and all the others once";
    s.quarantined.clear();
    s.leases = {{1, 0, {{0, 2, 3}}}};
    EXPECT_FALSE(DataLedger::restore(s, {}).ok()) << "2 is committed and leased";
    s.leases.clear();
    s.pooled.push_back({0, 3, 3});
    EXPECT_FALSE(DataLedger::restore(s, {}).ok()) << "an empty range";
    s.pooled.back() = {1, 0, 1};
    EXPECT_FALSE(DataLedger::restore(s, {}).ok()) << "a domain that is not there";
    s.pooled.pop_back();
    s.leases = {{1, 0, {{1, 0, 1}}}};
    EXPECT_FALSE(DataLedger::restore(s, {}).ok()) << "a lease of a domain that is not there";
}

TEST(LedgerTest, LeasesAreSwappedWhenBothHoldOne) {
    DataLedger l(1);
    const auto first = *l.lease(1, 0, 4);
    const auto second = *l.lease(1, 1, 2);
    EXPECT_FALSE(l.swapLeases(1, 0, 2).ok());
    EXPECT_FALSE(l.swapLeases(1, 2, 0).ok());
    ASSERT_TRUE(l.swapLeases(1, 0, 1).ok());
    EXPECT_EQ(*l.leased(1, 0), second);
    EXPECT_EQ(*l.leased(1, 1), first);
    EXPECT_EQ(l.leased(2, 0), nullptr);
}

/// A rank tells which samples its gradient is of, and may tell anything.
TEST(LedgerTest, OnlyWhatIsFreeIsLeasedAgain) {
    DataLedger l(1);
    (void)l.lease(1, 0, 4);
    l.giveBackAll();
    for (const SampleRange bad :
         {SampleRange{1, 0, 1}, SampleRange{0, 2, 2}, SampleRange{0, 3, 2}, SampleRange{0, 0, 2}}) {
        EXPECT_FALSE(l.leaseExactly(2, 0, {{0, 0, 1}, bad}).ok()) << bad.domain << bad.begin;
        EXPECT_EQ(l.pooledSamples(), 4u) << "all of it or nothing";
    }
    ASSERT_TRUE(l.leaseExactly(2, 0, {{0, 1, 3}}).ok());
    EXPECT_THAT(*l.leased(2, 0), ElementsAre(SampleRange{0, 1, 3}));
    EXPECT_FALSE(l.leaseExactly(2, 0, {{0, 0, 1}}).ok()) << "it holds one";
    EXPECT_FALSE(l.leaseExactly(2, 1, {{0, 2, 4}}).ok()) << "r0 holds 2";
    EXPECT_TRUE(l.leaseExactly(2, 1, {{0, 3, 9}}).ok()) << "more than was ever handed out";
    EXPECT_TRUE(l.check().ok()) << l.check();
}

TEST(LedgerTest, ARecordThatNamesNoSamplesOrNoDomainIsNotReplayed) {
    for (const SampleRange bad :
         {SampleRange{0, 4, 4}, SampleRange{0, 5, 4}, SampleRange{1, 0, 4}}) {
        DataLedger l(1);
        CommitRecord r;
        r.contributors = {{0, 1, {bad}}};
        EXPECT_FALSE(l.replayCommit(r).ok()) << bad.domain << " " << bad.begin << " " << bad.end;
    }
}

TEST(LedgerTest, OnlyWhatIsHandedOutCanBeQuarantined) {
    DataLedger l(1);
    const auto held = *l.lease(1, 0, 4);
    EXPECT_FALSE(l.quarantine({1, 0, 1}).ok()) << "a domain that is not there";
    EXPECT_FALSE(l.quarantine({0, 2, 2}).ok()) << "nothing";
    EXPECT_FALSE(l.quarantine({0, 2, 6}).ok()) << "not all of it is";
    ASSERT_TRUE(l.quarantine({0, 1, 2}).ok());
    EXPECT_THAT(*l.leased(1, 0), ElementsAre(SampleRange{0, 0, 1}, SampleRange{0, 2, 4}));
    EXPECT_EQ(l.quarantinedSamples(), 1u);
    EXPECT_EQ(l.leasedSamples(), 3u);
    EXPECT_TRUE(l.check().ok()) << l.check();
}

TEST(LedgerTest, WhatIsWithheldOfADomainThatIsNotThereChangesNothing) {
    DataLedger l(1);
    l.withhold({1, 0, 4});
    EXPECT_TRUE(l.check().ok());
    EXPECT_EQ(l.quarantinedSamples(), 0u);
    l.withhold({0, 0, 4});
    EXPECT_EQ(l.quarantinedSamples(), 4u);
    EXPECT_TRUE(l.check().ok()) << l.check();
}

// ---- the log
// -------------------------------------------------------------------------------------

std::vector<LogEntry> someEntries() {
    LedgerState empty;
    empty.highWater = {0};
    LogLineage lineage;
    lineage.lineage = 1;
    lineage.ledger = empty;
    std::vector<LogEntry> out = {LogTerm{1}, lineage};
    for (uint64_t step = 1; step <= 3; ++step) {
        CommitRecord r;
        r.lineage = 1;
        r.step = step;
        r.epoch = step;
        r.updates = step;
        r.contributors = {{0, 1, {{0, 4 * (step - 1), 4 * step}}}};
        out.push_back(LogCommit{r, {}});
    }
    return out;
}

std::string written(const std::vector<LogEntry>& entries) {
    std::string bytes(kLogHeader);
    for (const LogEntry& e : entries) bytes += encodeEntry(e);
    return bytes;
}

TEST(CommitLogTest, WhateverATornWriteLeavesTheEntriesBeforeItAreRead) {
    const auto entries = someEntries();
    const std::string bytes = written(entries);
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
        const auto log = decodeLog(std::string_view(bytes).substr(0, cut));
        ASSERT_TRUE(log.ok()) << cut << ": " << log.status();
        EXPECT_LE(log->validBytes, cut);
        EXPECT_EQ(log->tornTail, log->validBytes != cut);
        EXPECT_EQ(written({entries.begin(),
                           entries.begin() + static_cast<std::ptrdiff_t>(log->entries.size())})
                      .substr(0, log->validBytes),
                  bytes.substr(0, log->validBytes));
    }
    EXPECT_EQ(decodeLog(bytes)->entries.size(), entries.size());
}

TEST(CommitLogTest, DamageInTheMiddleIsRefusedAndTheByteNamed) {
    const auto entries = someEntries();
    const size_t at = written({entries[0], entries[1]}).size();
    std::string bytes = written(entries);
    bytes[at + 20] = static_cast<char>(bytes[at + 20] ^ 1);
    const auto log = decodeLog(bytes);
    ASSERT_FALSE(log.ok());
    EXPECT_THAT(std::string(log.status().message()), HasSubstr("byte " + std::to_string(at)));
    EXPECT_FALSE(decodeLog("not a log at all").ok());
}

TEST(CommitLogTest, AWholeEntryOfAnotherBuildIsNoTornTail) {
    const std::string whole = std::string(kLogHeader) + encodeEntry(LogTerm{1});
    std::string other = encodeEntry(LogTerm{2});
    const size_t frame = other.size() - encode(LogEntry(LogTerm{2})).size();
    std::string body = other.substr(frame);
    body[0] = '\x7f';  // a kind of entry that this build does not have
    const uint64_t checksum = XXH3_64bits(body.data(), body.size());
    other.replace(frame, body.size(), body);
    other.replace(frame - sizeof checksum, sizeof checksum,
                  reinterpret_cast<const char*>(&checksum), sizeof checksum);
    const absl::Status refused = decodeLog(whole + other).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("another build of Bulkhead"));
    other.back() ^= 1;
    EXPECT_TRUE(decodeLog(whole + other)->tornTail) << "a write that did not finish";
}

/// The log of a job of 2 replicas up to its second commit, as 0.1.0 wrote it. If this fails, a job
/// that an older build began cannot go on: an entry may grow at its end alone, and whatever else
/// changes what an entry holds (votes are in it too) needs a new kLogHeader and a reader of this
/// one.
TEST(CommitLogTest, TheLogOfAnOlderBuildIsRead) {
    std::ifstream file(BULKHEAD_SOURCE_DIR "/tests/protocol/commit_log_03.bin", std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const auto log = decodeLog(bytes);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_FALSE(log->tornTail);
    ASSERT_EQ(log->entries.size(), 7u);
    const auto* commit = std::get_if<LogCommit>(&log->entries.back());
    ASSERT_NE(commit, nullptr);
    EXPECT_EQ(commit->record.step, 2u);
    ASSERT_EQ(commit->figures.votes.size(), 2u);
    EXPECT_EQ(commit->figures.votes[1].replica, 1);
    EXPECT_EQ(commit->figures.votes[1].shardsIn, 1u);
    EXPECT_EQ(commit->link.size(), 64u);
}

TEST(CommitLogTest, OfADamagedLogEveryWholeEntryCanBeLookedAt) {
    const auto entries = someEntries();
    const size_t at = written({entries[0], entries[1]}).size();
    std::string bytes = written(entries);
    bytes[at + 20] = static_cast<char>(bytes[at + 20] ^ 1);
    const auto whole = wholeEntries(bytes);
    ASSERT_EQ(whole.size(), entries.size() - 1);
    EXPECT_EQ(encodeEntry(whole[1]), encodeEntry(entries[1]));
    EXPECT_EQ(encodeEntry(whole[2]), encodeEntry(entries[3]));
    bytes[0] = '?';
    EXPECT_EQ(wholeEntries(bytes).size(), entries.size() - 1);
}

TEST(CommitLogTest, RecoveryKnowsTheLastStepAndTheDataPosition) {
    const auto state = recoverState(someEntries(), 2, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->step, 3u);
    EXPECT_EQ(state->last->epoch, 3u);
    EXPECT_THAT(state->ledger.highWater, ElementsAre(12));
    EXPECT_THAT(state->ledger.committed, ElementsAre(SampleRange{0, 0, 12}));
    EXPECT_THAT(state->incarnations, ElementsAre(1, 0));
}

TEST(CommitLogTest, EntriesThatContradictEachOtherAreRefused) {
    auto twice = someEntries();
    twice.push_back(twice.back());
    EXPECT_THAT(std::string(recoverState(twice, 2, 1).status().message()), HasSubstr("entry 6"));
    auto gap = someEntries();
    gap.erase(gap.begin() + 3);
    EXPECT_FALSE(recoverState(gap, 2, 1).ok());
    auto again = someEntries();
    std::get<LogCommit>(again[4]).record.contributors[0].ranges = {{0, 0, 4}};
    EXPECT_FALSE(recoverState(again, 2, 1).ok());
}

TEST(CommitLogTest, RecoveryKnowsWhatEveryKindOfEntrySays) {
    auto entries = someEntries();
    for (size_t i = 2; i < 5; ++i)
        std::get<LogCommit>(entries[i]).figures.productiveMs = static_cast<double>(i);
    entries.push_back(LogIncarnation{1, 4});
    entries.push_back(LogIncarnation{1, 3});
    entries.push_back(LogIncarnation{7, 3});
    entries.push_back(LogEpochs{9});
    entries.push_back(LogEpochs{8});
    entries.push_back(LogLayoutTried{6});
    entries.push_back(LogLayout{5, 4, {1, 0}, {2, 3}, -1});
    entries.push_back(LogQuarantine{{0, 20, 22}, "not finite"});
    LogOrders orders;
    orders.paused = orders.checkpoint = true;
    entries.push_back(orders);
    auto state = recoverState(entries, 2, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_THAT(state->incarnations, ElementsAre(1, 4));
    EXPECT_EQ(state->epoch, 9u);
    EXPECT_EQ(state->layoutTried, 6u);
    EXPECT_EQ(state->layout, 5u);
    EXPECT_THAT(state->expertShard, ElementsAre(1, 0));
    EXPECT_THAT(state->domainShare, ElementsAre(2, 3));
    EXPECT_EQ(state->updates, 3u);
    EXPECT_EQ(state->productiveSum, 9);
    EXPECT_EQ(state->productiveMs.at(2), 3);
    EXPECT_THAT(state->ledger.quarantined, ElementsAre(SampleRange{0, 20, 22}));
    EXPECT_THAT(state->ledger.pooled, ElementsAre(SampleRange{0, 12, 20}));
    EXPECT_TRUE(state->orders->paused && state->orders->checkpoint);
    EXPECT_FALSE(state->finished);

    LogCheckpoint kept{1, 2, 2, "two", 0, {}, {}, state->ledger};
    entries.push_back(kept);
    kept.step = 3;
    kept.path = "three";
    entries.push_back(kept);
    entries.push_back(LogCheckpointsDropped{{"old"}, false});
    entries.push_back(LogCheckpointsDropped{{"bad"}, true});
    state = recoverState(entries, 2, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_FALSE(state->orders->checkpoint) << "the checkpoint is the answer";
    EXPECT_EQ(state->checkpoints.size(), 2u);
    EXPECT_FALSE(state->productiveMs.contains(2)) << "no rollback goes behind the oldest";
    EXPECT_TRUE(state->productiveMs.contains(3));
    EXPECT_THAT(state->discarded, ElementsAre("old"));
    EXPECT_THAT(state->unusable, ElementsAre("bad"));

    LogLineage back;
    back.lineage = 2;
    back.fromStep = 2;
    back.updates = 2;
    back.resumeFrom = "two";
    back.layout = 8;
    back.expertShard = {0, 1};
    back.domainShare = {4};
    back.ledger = state->ledger;
    entries.push_back(back);
    state = recoverState(entries, 2, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(std::tuple(state->lineage, state->lineageFromStep, state->step, state->updates),
              std::tuple(2u, 2u, 2u, 2u));
    EXPECT_EQ(state->resumeFrom, "two");
    EXPECT_FALSE(state->last.has_value());
    ASSERT_EQ(state->checkpoints.size(), 1u);
    EXPECT_EQ(state->checkpoints[0].path, "two");
    EXPECT_FALSE(state->checkpoints[0].borrowed);
    EXPECT_EQ(state->productiveSum, 5) << "steps that a rollback supersedes count no more";
    EXPECT_EQ(state->layoutTried, 8u);
    EXPECT_EQ(state->layout, 8u);
    EXPECT_THAT(state->domainShare, ElementsAre(4));

    entries.push_back(LogCheckpointsDropped{{"two"}, false});
    back.lineage = 3;
    back.resumeFrom = "elsewhere";
    entries.push_back(back);
    entries.push_back(LogFinished{});
    state = recoverState(entries, 2, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    ASSERT_EQ(state->checkpoints.size(), 1u);
    EXPECT_TRUE(state->checkpoints[0].borrowed) << "another run's";
    EXPECT_EQ(state->checkpoints[0].path, "elsewhere");
    EXPECT_EQ(state->checkpoints[0].step, 2u);
    EXPECT_TRUE(state->finished);
}

TEST(CommitLogTest, OfDiscardedCheckpointsTheLastAreNamedAgain) {
    auto entries = someEntries();
    for (size_t i = 0; i <= kDiscardedKept; ++i)
        entries.push_back(LogCheckpointsDropped{{std::to_string(i)}, false});
    const auto state = recoverState(entries, 2, 1);
    ASSERT_EQ(state->discarded.size(), kDiscardedKept);
    EXPECT_EQ(state->discarded.front(), "1");
}

TEST(CommitLogTest, TermsAndLineagesRiseAndTheDomainsAreTheJobs) {
    auto entries = someEntries();
    entries.push_back(LogTerm{1});
    EXPECT_FALSE(recoverState(entries, 2, 1).ok());
    entries.back() = LogTerm{2};
    EXPECT_EQ(recoverState(entries, 2, 1)->term, 2u);
    LogLineage same = std::get<LogLineage>(entries[1]);
    entries.push_back(same);
    EXPECT_FALSE(recoverState(entries, 2, 1).ok());
    EXPECT_FALSE(recoverState(someEntries(), 2, 2).ok()) << "two domains";
}

}  // namespace
}  // namespace bulkhead::protocol
