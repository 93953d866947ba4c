// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/checkpoint_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/common/codec.h"

namespace bulkhead::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

LogCheckpoint checkpoint(uint64_t step, const std::string& path) {
    LogCheckpoint c;
    c.lineage = 1;
    c.step = step;
    c.path = path;
    return c;
}

TEST(CheckpointBookTest, TheNewestIsTheOneOfTheHighestStepWhateverCameLast) {
    CheckpointBook book;
    for (const uint64_t step : {50, 60, 90, 40, 50})  // one is told of twice
        book.add(checkpoint(step, "at" + std::to_string(step)));
    EXPECT_EQ(book.newest()->step, 90u);
    EXPECT_THAT(book.surplus(2), ElementsAre("at50", "at40"));
    book.remove("at90");
    EXPECT_EQ(book.newest()->step, 60u);
}

TEST(CheckpointBookTest, OfOneStepTheFirstIsPreferredAndAllCountAsOne) {
    CheckpointBook book;
    for (const char* path : {"a", "b", "c"}) book.add(checkpoint(45, path));
    book.add(checkpoint(40, "older"));
    book.add(checkpoint(45, "a"));
    EXPECT_EQ(book.newest()->path, "a");
    EXPECT_THAT(book.surplus(2), IsEmpty());
    EXPECT_THAT(book.surplus(1), ElementsAre("older"));
    EXPECT_THAT(book.surplus(0), ElementsAre("older")) << "one is always kept";
}

TEST(CheckpointBookTest, WhatAnotherRunWroteIsNeverSurplus) {
    CheckpointBook book;
    LogCheckpoint other = checkpoint(10, "of another run");
    other.borrowed = true;
    book.add(other);
    book.add(checkpoint(20, "begun from"));
    book.add(checkpoint(30, "new"));
    EXPECT_THAT(book.surplus(1), ElementsAre("begun from"));
}

// ---- what lies on disk

CommitRecord record(uint64_t lineage, uint64_t step) {
    CommitRecord r;
    r.lineage = lineage;
    r.step = step;
    r.epoch = lineage;
    r.updates = step;
    r.contributors = {{0, 1, {{0, 4 * (step - 1), 4 * step}}}};
    return r;
}

LogLineage lineage(uint64_t number, uint64_t from, const std::string& path) {
    LogLineage l;
    l.lineage = number;
    l.fromStep = l.updates = from;
    l.resumeFrom = path;
    l.ledger.highWater = {4 * from};
    if (from > 0) l.ledger.committed = {{0, 0, 4 * from}};
    return l;
}

/// Steps 1 to 5, back to 3, steps 4 and 5 once more.
std::vector<LogEntry> twoLineages() {
    std::vector<LogEntry> log = {LogTerm{1}, lineage(1, 0, "")};
    for (uint64_t step = 1; step <= 5; ++step) log.push_back(LogCommit{record(1, step), {}});
    log.push_back(lineage(2, 3, "at3"));
    for (uint64_t step = 4; step <= 5; ++step) log.push_back(LogCommit{record(2, step), {}});
    return log;
}

StoredCheckpoint stored(const std::string& path, const CommitRecord& last, uint64_t hash) {
    return {path, last, 0, {}, {hash}};
}

std::vector<std::string> pathsOf(const std::vector<LogCheckpoint>& found) {
    std::vector<std::string> paths;
    for (const LogCheckpoint& c : found) paths.push_back(c.path);
    return paths;
}

TEST(StoredCheckpointTest, OnlyStepsOfThePresentLineOfDescentCount) {
    CommitRecord never = record(2, 5);
    never.attempt = 7;
    const auto found =
        judgeStored(twoLineages(), 2, 1,
                    {stored("undone", record(1, 5), 1), stored("kept", record(1, 2), 2),
                     stored("last", record(2, 5), 3), stored("never", never, 4)});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(pathsOf(*found), ElementsAre("kept", "last"));
    EXPECT_EQ(found->back().step, 5u);
    EXPECT_EQ(found->back().updates, 5u);
    EXPECT_EQ(found->back().lineage, 2u);
    EXPECT_THAT(found->back().ledger.committed, ElementsAre(SampleRange{0, 0, 20}));
    EXPECT_THAT(found->front().ledger.committed, ElementsAre(SampleRange{0, 0, 8}));
}

TEST(StoredCheckpointTest, OfOneStepTheOneThatMostAgreeWithComesFirst) {
    const CommitRecord last = record(2, 5);
    const auto found = judgeStored(
        twoLineages(), 2, 1, {stored("odd", last, 1), stored("a", last, 2), stored("b", last, 2)});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(pathsOf(*found), ElementsAre("a", "b", "odd"));
}

/// The votes on a state come with the step after it.
LogCommit votedOn(const CommitRecord& next, uint64_t hash, std::vector<int32_t> replicas) {
    LogCommit commit{next, {}};
    const std::vector<uint32_t> incarnations(replicas.size(), 1);
    commit.figures.parity = {{{hash}, std::move(replicas), incarnations}};
    return commit;
}

TEST(StoredCheckpointTest, OneOfAnotherStateThanWasVotedForDoesNotCountHoweverOldItIs) {
    std::vector<LogEntry> log = {LogTerm{1}, lineage(1, 0, "")};
    for (uint64_t step = 1; step <= 200; ++step) log.push_back(LogCommit{record(1, step), {}});
    log[2 + 3] = votedOn(record(1, 4), 30, {0, 1});  // of the state after step 3
    log[2 + 5] = votedOn(record(1, 6), 50, {1});     // alone
    StoredCheckpoint moved = stored("moved", record(1, 3), 31);
    moved.layout = 1;
    StoredCheckpoint unhashed = stored("unhashed", record(1, 5), 0);
    unhashed.hashes.clear();
    const std::vector<StoredCheckpoint> all = {
        stored("right", record(1, 3), 30),     stored("wrong", record(1, 3), 31),
        stored("wrong too", record(1, 3), 31), moved,
        stored("unknown", record(1, 4), 1),    stored("alone", record(1, 5), 50),
        stored("other", record(1, 5), 51),     unhashed};
    const auto found = judgeStored(log, 2, 1, all);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(pathsOf(*found), ElementsAre("right", "moved", "unknown", "alone", "unhashed"));

    // The log is damaged, and manifests tell by their records what it has lost.
    std::vector<LogEntry> damaged = log;
    damaged.erase(damaged.begin() + 2);
    std::vector<StoredCheckpoint> orphans = {all[0], all[1]};
    for (StoredCheckpoint& s : orphans)
        for (uint64_t step = 1; step <= 3; ++step) s.records.push_back(record(1, step));
    EXPECT_THAT(pathsOf(judgeBehindDamage(damaged, 2, 1, orphans)), ElementsAre("right"));

    log.push_back(lineage(2, 100, "at100"));  // the vote is of a lineage before
    const auto later = judgeStored(log, 2, 1, all);
    ASSERT_TRUE(later.ok()) << later.status();
    EXPECT_THAT(pathsOf(*later), ElementsAre("right", "moved", "unknown", "alone", "unhashed"));
}

TEST(StoredCheckpointTest, BehindTheEndOfALogThatWasCutManifestsCount) {
    const auto whole = [](const std::string& path, const CommitRecord& last) {
        StoredCheckpoint s = stored(path, last, last.step);
        s.ledger.emplace();
        s.ledger->highWater = {4 * last.step};
        s.ledger->committed = {{0, 0, 4 * last.step}};
        return s;
    };
    const std::vector<StoredCheckpoint> all = {
        whole("at9", record(2, 9)), whole("at2", record(1, 2)), whole("undone", record(1, 5)),
        stored("orphan", record(2, 11), 1)};
    const auto behind = judgeStored(twoLineages(), 2, 1, all);
    ASSERT_TRUE(behind.ok()) << behind.status();
    EXPECT_THAT(pathsOf(*behind), ElementsAre("at2", "at9"))
        << "an orphan does not know its samples";
    EXPECT_EQ(behind->back().updates, 9u);
    EXPECT_THAT(behind->back().ledger.committed, ElementsAre(SampleRange{0, 0, 36}));

    const auto log = twoLineages();
    const auto cut = judgeStored({log.begin(), log.begin() + 7}, 2, 1, all);  // before lineage 2
    ASSERT_TRUE(cut.ok()) << cut.status();
    EXPECT_THAT(pathsOf(*cut), ElementsAre("at2", "undone", "at9"));
    CheckpointBook book(*cut);
    EXPECT_EQ(book.newest()->path, "at9");

    const auto gone = judgeStored({}, 2, 1, all);
    ASSERT_TRUE(gone.ok()) << gone.status();
    EXPECT_THAT(pathsOf(*gone), ElementsAre("at9"));
}

/// The log has lost an entry in front of what tells everything anew.
TEST(StoredCheckpointTest, BehindDamageWhatTheRestOfTheLogProvesCounts) {
    std::vector<LogEntry> log = {LogTerm{1}, lineage(1, 0, "")};
    for (uint64_t step = 1; step <= 9; ++step) {
        if (step != 2) log.push_back(LogCommit{record(1, step), {}});
        if (step != 5) continue;
        LogCheckpoint at4 = checkpoint(4, "at4");
        at4.lineage = 1;
        at4.ledger.highWater = {16};
        at4.ledger.committed = {{0, 0, 16}};
        log.push_back(at4);
    }
    const std::vector<StoredCheckpoint> orphans = {stored("at7", record(1, 7), 1),
                                                   stored("at3", record(1, 3), 1),
                                                   stored("at9", record(1, 9), 1)};
    EXPECT_FALSE(judgeStored(log, 2, 1, orphans).ok());
    auto found = judgeBehindDamage(log, 2, 1, orphans);
    EXPECT_THAT(pathsOf(found), ElementsAre("at7", "at9"));
    EXPECT_THAT(found.back().ledger.committed, ElementsAre(SampleRange{0, 0, 36}));
    EXPECT_EQ(found.back().lineage, 1u);

    // Another entry is lost: nobody knows which samples step 8 took.
    log.erase(log.end() - 2);
    EXPECT_THAT(pathsOf(judgeBehindDamage(log, 2, 1, orphans)), ElementsAre("at7"));
    // The chain tells of an entry that is lost between two whole steps.
    auto& seventh = std::get<LogCommit>(log.at(log.size() - 2));
    auto& sixth = std::get<LogCommit>(log.at(log.size() - 3));
    ASSERT_EQ(seventh.record.step, 7u);
    sixth.link = "x";
    seventh.link = "y";
    EXPECT_THAT(judgeBehindDamage(log, 2, 1, orphans), IsEmpty());
    seventh.link = chainLink("x", chained(seventh));
    EXPECT_THAT(pathsOf(judgeBehindDamage(log, 2, 1, orphans)), ElementsAre("at7"));

    // A rollback says everything anew too.
    std::vector<LogEntry> rolled = twoLineages();
    rolled.erase(rolled.begin() + 3);
    EXPECT_THAT(pathsOf(judgeBehindDamage(rolled, 2, 1, {stored("last", record(2, 5), 1)})),
                ElementsAre("last"));
    EXPECT_THAT(judgeBehindDamage({LogTerm{1}}, 2, 1, orphans), IsEmpty());
}

/// The records of these steps of lineage 1.
std::vector<CommitRecord> records(uint64_t first, uint64_t last) {
    std::vector<CommitRecord> all;
    for (uint64_t step = first; step <= last; ++step) all.push_back(record(1, step));
    return all;
}

TEST(StoredCheckpointTest, AnOrphanSaysByItsRecordsWhatADamagedLogHasLost) {
    std::vector<LogEntry> log = {LogTerm{1}, lineage(1, 0, "")};
    for (const CommitRecord& r : records(1, 9))
        if (r.step != 2 && r.step != 7) log.push_back(LogCommit{r, {}});
    StoredCheckpoint orphan = stored("at9", record(1, 9), 1);
    orphan.records = records(1, 9);
    auto found = judgeBehindDamage(log, 2, 1, {orphan});
    ASSERT_THAT(pathsOf(found), ElementsAre("at9"));
    EXPECT_THAT(found[0].ledger.committed, ElementsAre(SampleRange{0, 0, 36}));
    EXPECT_EQ(found[0].updates, 9u);

    // Records from the first step on suffice without any log.
    found = judgeBehindDamage({}, 2, 1, {orphan});
    ASSERT_THAT(pathsOf(found), ElementsAre("at9"));
    EXPECT_THAT(found[0].ledger.committed, ElementsAre(SampleRange{0, 0, 36}));
    const auto lost = judgeStored({LogTerm{1}}, 2, 1, {orphan});
    ASSERT_TRUE(lost.ok()) << lost.status();
    ASSERT_THAT(pathsOf(*lost), ElementsAre("at9"));
    EXPECT_THAT(lost->front().ledger.committed, ElementsAre(SampleRange{0, 0, 36}));

    // They may begin later, where something tells the ledger until then.
    orphan.records = records(5, 9);
    EXPECT_THAT(judgeBehindDamage(log, 2, 1, {orphan}), IsEmpty());
    LogCheckpoint at4 = checkpoint(4, "at4");
    at4.lineage = 1;
    at4.ledger.highWater = {16};
    at4.ledger.committed = {{0, 0, 16}};
    StoredCheckpoint told = stored("at4", record(1, 4), 1);
    told.ledger = at4.ledger;
    found = judgeBehindDamage({}, 2, 1, {told, orphan});
    EXPECT_THAT(pathsOf(found), ElementsAre("at9")) << "nothing is left of the log";
    log.push_back(at4);
    found = judgeBehindDamage(log, 2, 1, {orphan});
    ASSERT_THAT(pathsOf(found), ElementsAre("at9"));
    EXPECT_THAT(found[0].ledger.committed, ElementsAre(SampleRange{0, 0, 36}));

    for (const auto& wrong : {records(8, 9), records(5, 8)}) {
        orphan.records = wrong;
        EXPECT_THAT(judgeBehindDamage(log, 2, 1, {orphan}), IsEmpty());
    }
    orphan.records = records(5, 9);
    orphan.records.erase(orphan.records.begin() + 2);
    EXPECT_THAT(judgeBehindDamage(log, 2, 1, {orphan}), IsEmpty()) << "one is left out";
    orphan.records = records(5, 9);
    log.push_back(lineage(2, 4, "at4"));
    EXPECT_THAT(judgeBehindDamage(log, 2, 1, {orphan}), IsEmpty()) << "the job gave it up";
}

TEST(StoredCheckpointTest, AnOrphanOfAPastThatADiskLostIsNotTakenForTheRunsPresent) {
    std::vector<LogEntry> log = {LogTerm{1}, lineage(1, 0, "")};
    for (const CommitRecord& r : records(1, 4)) log.push_back(LogCommit{r, {}});
    StoredCheckpoint orphan = stored("at6", record(1, 6), 1);
    orphan.records = records(3, 6);
    auto judged = judgeStored(log, 2, 1, {orphan});
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_THAT(pathsOf(*judged), ElementsAre("at6"));
    orphan.records[1].epoch += 1;  // step 4 was committed again since
    judged = judgeStored(log, 2, 1, {orphan});
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_THAT(*judged, IsEmpty());
    EXPECT_THAT(judgeBehindDamage(log, 2, 1, {orphan}), IsEmpty());
    StoredCheckpoint told = stored("at4", record(1, 4), 1);
    told.ledger = LedgerState{{16}, {{0, 0, 16}}, {}, {}, {}};
    EXPECT_THAT(pathsOf(judgeBehindDamage({}, 2, 1, {told, orphan})), IsEmpty());
    orphan.records = records(3, 6);
    EXPECT_THAT(pathsOf(judgeBehindDamage({}, 2, 1, {told, orphan})), ElementsAre("at6"));
}

TEST(StoredCheckpointTest, AnOrphansRecordsLeadAcrossAMoveOfExperts) {
    LogCheckpoint at4 = checkpoint(4, "at4");
    at4.lineage = 1;
    at4.domainShare = {3, 1};
    at4.ledger.highWater = {16};
    at4.ledger.committed = {{0, 0, 16}};
    StoredCheckpoint orphan = stored("at9", record(1, 9), 1);
    orphan.records = records(5, 9);
    orphan.layout = at4.layout;
    auto found = judgeBehindDamage({at4}, 2, 1, {orphan});
    ASSERT_THAT(pathsOf(found), ElementsAre("at9"));
    EXPECT_EQ(found[0].domainShare, at4.domainShare);
    orphan.layout = 7;
    orphan.expertShard = {1, 0};
    found = judgeBehindDamage({at4}, 2, 1, {orphan});
    ASSERT_THAT(pathsOf(found), ElementsAre("at9"));
    EXPECT_EQ(found[0].layout, 7u);
    EXPECT_EQ(found[0].expertShard, orphan.expertShard);
    EXPECT_THAT(found[0].domainShare, IsEmpty());
}

TEST(StoredCheckpointTest, AnOrphansRecordsGoOnFromTheEndOfALogThatLostItsEnd) {
    std::vector<LogEntry> log = {LogTerm{1}, lineage(1, 0, "")};
    for (const CommitRecord& r : records(1, 3)) log.push_back(LogCommit{r, {}});
    StoredCheckpoint orphan = stored("at5", record(1, 5), 1);
    orphan.records = records(3, 5);
    const auto judged = judgeStored(log, 2, 1, {orphan});
    ASSERT_TRUE(judged.ok()) << judged.status();
    ASSERT_THAT(pathsOf(*judged), ElementsAre("at5"));
    EXPECT_THAT(judged->front().ledger.committed, ElementsAre(SampleRange{0, 0, 20}));
}

TEST(CheckpointBookTest, ALaterLineageTakesThePlaceOfEarlierOnesFromItsStepOn) {
    CheckpointBook book(
        {LogCheckpoint{1, 3, 3, "a", 0, {}, {}, {}}, LogCheckpoint{1, 7, 7, "b", 0, {}, {}, {}}});
    book.add(LogCheckpoint{2, 6, 6, "c", 0, {}, {}, {}});
    EXPECT_EQ(book.newest()->path, "c");
    EXPECT_EQ(book.find("b"), nullptr);
    EXPECT_NE(book.find("a"), nullptr);
}

// ---- the log of it

TEST(CheckpointLogTest, WhatWasDroppedIsNotGoneBackTo) {
    std::vector<LogEntry> log = {LogTerm{1},
                                 lineage(1, 0, ""),
                                 LogCommit{record(1, 1), {}},
                                 checkpoint(1, "a"),
                                 LogCommit{record(1, 2), {}},
                                 checkpoint(2, "b"),
                                 LogCheckpointsDropped{{"a"}, false}};
    auto state = recoverState(log, 2, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    ASSERT_EQ(state->checkpoints.size(), 1u);
    EXPECT_EQ(state->checkpoints[0].path, "b");
    EXPECT_THAT(state->discarded, ElementsAre("a"));
    log.push_back(LogCheckpointsDropped{{"b"}, true});
    state = recoverState(log, 2, 1);
    EXPECT_THAT(state->checkpoints, IsEmpty());
    EXPECT_THAT(state->unusable, ElementsAre("b"));
    EXPECT_THAT(state->discarded, ElementsAre("a")) << "damaged files stay for people to look at";
}

TEST(CheckpointLogTest, ARunThatBeganFromAnotherRunsCheckpointCanGoBackToItAfterARestart) {
    const auto state = recoverState({LogTerm{1}, lineage(1, 8, "/other/manifest.json")}, 2, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    ASSERT_EQ(state->checkpoints.size(), 1u);
    EXPECT_EQ(state->checkpoints[0].step, 8u);
    EXPECT_TRUE(state->checkpoints[0].borrowed);
}

TEST(CheckpointLogTest, NumbersThatWereGivenOutAreUsedUp) {
    const auto state = recoverState(
        {LogTerm{1}, lineage(1, 0, ""), LogEpochs{64}, LogLayoutTried{3}, LogLayoutTried{4}}, 2, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->epoch, 64u);
    EXPECT_EQ(state->layoutTried, 4u);
    EXPECT_EQ(state->layout, 0u);
}

/// A log written before the field was there.
TEST(CheckpointLogTest, AnEntryThatEndsBeforeAFieldAppendedLaterKeepsItsDefault) {
    LogOrders orders;
    orders.paused = true;
    orders.policies.checkpointsKept = 9;
    const std::string whole = encode(LogEntry{orders});
    Decoder older(std::string_view(whole).substr(0, whole.size() - 4), true);
    LogEntry read;
    older.get(read);
    ASSERT_TRUE(older.finish().ok()) << older.finish();
    EXPECT_TRUE(std::get<LogOrders>(read).paused);
    EXPECT_EQ(std::get<LogOrders>(read).policies.checkpointsKept, Policies{}.checkpointsKept);
    Decoder torn(std::string_view(whole).substr(0, whole.size() - 2), true);
    torn.get(read);
    EXPECT_FALSE(torn.finish().ok());
}

}  // namespace
}  // namespace bulkhead::protocol
