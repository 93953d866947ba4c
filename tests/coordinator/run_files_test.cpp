// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/run_files.h"

#include <gmock/gmock.h>
#include <unistd.h>
#include <xxhash.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "backend/common/codec.h"
#include "backend/common/file_system.h"
#include "backend/model/json.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

/// The machine's own files, to which a run adds whenever its commit log was read.
class GrowingFiles final : public FileSystem {
  public:
    explicit GrowingFiles(std::function<void()> grow) : grow_(std::move(grow)) {}
    bool exists(const std::string& path) const override { return disk_.exists(path); }
    absl::StatusOr<std::string> read(const std::string& path) const override {
        auto bytes = disk_.read(path);
        if (path.ends_with("/commit.log")) grow_();
        return bytes;
    }
    absl::Status read(const std::string& path, uint64_t offset,
                      std::span<std::byte> to) const override {
        return disk_.read(path, offset, to);
    }
    absl::StatusOr<uint64_t> size(const std::string& path) const override {
        return disk_.size(path);
    }
    std::vector<std::string> list(const std::string& folder) const override {
        return disk_.list(folder);
    }
    absl::StatusOr<std::unique_ptr<AppendFile>> open(const std::string& path) override {
        return disk_.open(path);
    }
    absl::Status rename(const std::string& from, const std::string& to) override {
        return disk_.rename(from, to);
    }
    absl::Status remove(const std::string& path) override { return disk_.remove(path); }
    absl::Status makeFolder(const std::string& path) override { return disk_.makeFolder(path); }
    absl::Status removeFolder(const std::string& path) override { return disk_.removeFolder(path); }
    absl::Status syncFolder(const std::string& folder) override { return disk_.syncFolder(folder); }
    absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path) override {
        return disk_.lock(path);
    }

  private:
    std::function<void()> grow_;
    FileSystem& disk_ = diskFiles();
};

/// A state directory with runs as a controller leaves them.
class RunFilesTest : public testing::Test {
  protected:
    RunFilesTest()
        : folder_(fs::path(testing::TempDir()) / ("runs_" + std::to_string(::getpid()))) {
        fs::create_directories(folder_);
    }
    ~RunFilesTest() override { fs::remove_all(folder_); }

    std::string state() const { return folder_.string(); }
    std::string runDir(const std::string& run) const { return (folder_ / run).string(); }
    void write(const fs::path& path, const std::string& text) {
        fs::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary) << text;
    }
    std::string manifest(const std::string& name) {
        const fs::path path = folder_ / "manifests" / name;
        write(path, "any");
        return path.string();
    }
    static std::vector<protocol::LogEntry> begun() {
        protocol::LogLineage lineage;
        lineage.lineage = 1;
        lineage.ledger.highWater = {0};
        return {protocol::LogTerm{1}, lineage};
    }
    static protocol::LedgerState begunLedger() {
        protocol::LedgerState ledger;
        ledger.highWater = {0};
        return ledger;
    }
    static protocol::LogCheckpoint checkpoint(uint64_t step, const std::string& path) {
        protocol::LogCheckpoint c;
        c.lineage = 1;
        c.step = step;
        c.path = path;
        c.ledger.highWater = {0};
        return c;
    }
    void run(const std::string& name, const std::vector<protocol::LogEntry>& entries) {
        model::JobSpec spec;
        spec.name = name;
        spec.checkpointDir = (folder_ / "checkpoints" / name).string();
        write(folder_ / name / "job.json", model::toJsonText(spec));
        std::string log(protocol::kLogHeader);
        for (const auto& e : entries) log += protocol::encodeEntry(e);
        write(folder_ / name / "commit.log", log);
    }
    /// A whole checkpoint of the run, as its ranks leave it; returns its manifest's path.
    /// With `records` an orphan's, which was told no data position.
    static std::string stored(const model::JobSpec& spec, uint64_t lineage, uint64_t step,
                              char by = 'a', const std::vector<CommitRecord>& records = {}) {
        const std::string folder =
            spec.checkpointDir + "/" + checkpointFolder(lineage, step, 0, 0, 1);
        StateSnapshot state;
        state.lineage = state.last.lineage = lineage;
        state.step = state.last.step = step;
        state.bytes.assign(100, std::byte{5});
        state.hash = bulkhead_state_hash(state.bytes.data(), state.bytes.size());
        CheckpointManifest manifest;
        manifest.job = spec.name;
        manifest.run = std::string(32, by);
        manifest.step = step;
        manifest.lineage = lineage;
        manifest.shards = 1;
        manifest.last = state.last;
        manifest.jobJson = model::toJsonText(spec);
        if (records.empty()) manifest.dataPosition = encode(begunLedger());
        manifest.records = records;
        manifest.files.push_back(*writeShardFile(diskFiles(), folder, 0, state));
        return *writeManifest(diskFiles(), folder, manifest);
    }
    /// A byte of the second entry.
    void damage(const std::string& name) {
        const std::string path = runDir(name) + "/commit.log";
        std::string log = *diskFiles().read(path);
        const size_t at = std::string(protocol::kLogHeader).size() +
                          protocol::encodeEntry(protocol::LogTerm{1}).size() + 20;
        log[at] = static_cast<char>(log[at] ^ 1);
        write(path, log);
    }

    const fs::path folder_;
};

TEST_F(RunFilesTest, ARunIsNamedByItsJobAndTheTime) {
    EXPECT_EQ(makeRunId("My job!", 0).substr(makeRunId("My job!", 0).size() - 16),
              "-19700101-000000");
    EXPECT_TRUE(checkRunId(makeRunId("My job!", 0)).ok());
    EXPECT_TRUE(checkRunId(makeRunId("", 0)).ok());
    EXPECT_TRUE(checkRunId(std::string(80, 'a')).ok());
    for (const std::string& bad : {std::string(), std::string(81, 'a'), std::string(".hidden"),
                                   std::string("a/b"), std::string("a b")})
        EXPECT_TRUE(absl::IsInvalidArgument(checkRunId(bad))) << bad;
}

TEST_F(RunFilesTest, ARunIsUnfinishedUntilItsLogSaysThatItEnded) {
    run("a", begun());
    auto ended = begun();
    ended.push_back(protocol::LogFinished{});
    run("b", ended);
    EXPECT_THAT(unfinishedRuns(diskFiles(), state()), ElementsAre("a"));
    EXPECT_TRUE(checkNotSetAside(diskFiles(), runDir("a")).ok());
    EXPECT_EQ(supersededBy(diskFiles(), runDir("a")), "");
    ASSERT_TRUE(setAside(diskFiles(), runDir("a"), "b").ok());
    EXPECT_EQ(supersededBy(diskFiles(), runDir("a")), "b");
    EXPECT_TRUE(unfinishedRuns(diskFiles(), state()).empty());
    EXPECT_TRUE(fs::exists(runDir("a") + "/commit.log.damaged"));
    EXPECT_EQ(readLog(diskFiles(), runDir("a"))->size(), 1u);
    EXPECT_TRUE(absl::IsNotFound(logLinks(diskFiles(), runDir("a")).status()))
        << "nothing to hold its run file against";
    fs::rename(runDir("a") + "/commit.log.damaged", runDir("a") + "/commit.log");
    EXPECT_THAT(unfinishedRuns(diskFiles(), state()), ElementsAre("a"));
    EXPECT_THAT(std::string(checkNotSetAside(diskFiles(), runDir("a")).message()),
                HasSubstr("run b goes on from its checkpoint, and its log was put back"));
    fs::create_directories(runDir("empty"));
    EXPECT_TRUE(setAside(diskFiles(), runDir("empty"), "b").ok()) << "its log was lost";
}

TEST_F(RunFilesTest, AJobFileThatCannotBeReadIsNamed) {
    run("a", begun());
    EXPECT_EQ(readSpec(diskFiles(), runDir("a"))->name, "a");
    const fs::path file = folder_ / "a" / "job.json";
    const auto wrong = [&] {
        const auto bad = readSpec(diskFiles(), runDir("a"));
        EXPECT_TRUE(absl::IsDataLoss(bad.status()));
        EXPECT_THAT(std::string(bad.status().message()), HasSubstr("put the file back"));
        return std::string(bad.status().message());
    };
    write(file, "{");
    EXPECT_THAT(wrong(), HasSubstr(file.string() + " is damaged: "));
    write(file, "{}");
    EXPECT_THAT(wrong(), HasSubstr(file.string() + " is damaged: it names no job"));
    write(file, "\n");
    EXPECT_THAT(wrong(), HasSubstr(file.string() + " is empty"));
    fs::remove(file);
    EXPECT_THAT(wrong(), HasSubstr(file.string() + " is missing"));
    EXPECT_THAT(unfinishedRuns(diskFiles(), state()), ElementsAre("a")) << "it is a run without it";
    fs::create_directory(file);
    EXPECT_THAT(wrong(), HasSubstr("it is a folder"));
    EXPECT_FALSE(readSpec(diskFiles(), runDir("nobody")).ok());
}

TEST_F(RunFilesTest, TheJobInACheckpointCountsWhereTheJobFileCannotBeUsed) {
    model::JobSpec spec;
    spec.name = "a";
    spec.steps = 200;
    spec.checkpointDir = (folder_ / "checkpoints" / "a").string();
    const auto manifestOf = [&](const std::string& run) {
        CheckpointManifest manifest;
        manifest.job = run;
        manifest.step = 7;
        manifest.jobJson = model::toJsonText(spec);
        const fs::path path = folder_ / "manifests" / run;
        write(path, manifestText(manifest));
        return path.string();
    };
    auto entries = begun();
    entries.push_back(checkpoint(7, manifestOf("a")));
    run("a", entries);
    write(folder_ / "a" / "job.json", "");
    ASSERT_TRUE(readSpec(diskFiles(), runDir("a")).ok());
    EXPECT_EQ(*readSpec(diskFiles(), runDir("a")), spec);
    EXPECT_EQ(findCheckpoint(diskFiles(), state(), "a")->spec, spec);
    EXPECT_TRUE(checkUnedited(diskFiles(), runDir("a"), spec).ok());

    model::JobSpec edited = spec;
    edited.steps = 300;
    edited.policies.minReplicas = 2;
    const absl::Status refused = checkUnedited(diskFiles(), runDir("a"), edited);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("steps is 300 and was 200"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("policies.min_replicas is 2 and was 1"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("its checkpoint of step 7"));

    entries.back() = checkpoint(7, manifestOf("b"));  // where a run began that goes on from another
    run("a", entries);
    EXPECT_TRUE(checkUnedited(diskFiles(), runDir("a"), edited).ok());

    model::RunState past;
    EXPECT_TRUE(checkUnedited(diskFiles(), runDir("a"), edited, past).ok()) << "nobody knows";
    past.spec = spec;
    EXPECT_TRUE(checkUnedited(diskFiles(), runDir("a"), spec, past).ok());
    EXPECT_THAT(std::string(checkUnedited(diskFiles(), runDir("a"), edited, past).message()),
                HasSubstr("edited since the run began: "));

    // One that was written and not logged any more when everything was killed.
    fs::create_directories(fs::path(spec.checkpointDir) / "l0001-step000000007-layout0-r0-i1");
    fs::copy_file(manifestOf("a"), fs::path(spec.checkpointDir) /
                                       "l0001-step000000007-layout0-r0-i1" / "manifest.json");
    EXPECT_FALSE(checkUnedited(diskFiles(), runDir("a"), edited).ok());
    EXPECT_TRUE(checkUnedited(diskFiles(), runDir("a"), spec).ok());
}

TEST_F(RunFilesTest, ACheckpointIsFoundByItsRunOrByItsPath) {
    const std::string five = manifest("five"), ten = manifest("ten");
    auto entries = begun();
    entries.push_back(checkpoint(10, ten));
    entries.push_back(checkpoint(5, five));
    entries.push_back(checkpoint(15, "/gone"));
    run("a", entries);
    run("b", begun());
    auto found = findCheckpoint(diskFiles(), state(), "a");
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->checkpoint.path, ten) << "the newest that is there";
    EXPECT_EQ(found->spec.name, "a");
    found = findCheckpoint(diskFiles(), state(), five);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->checkpoint.step, 5u);
    const auto none = findCheckpoint(diskFiles(), state(), "b");
    EXPECT_TRUE(absl::IsNotFound(none.status()));
    EXPECT_THAT(std::string(none.status().message()), HasSubstr("has no checkpoint"));
    EXPECT_TRUE(absl::IsNotFound(findCheckpoint(diskFiles(), state(), "/gone").status()));
    EXPECT_TRUE(absl::IsNotFound(findCheckpoint(diskFiles(), state(), "c").status()));
}

TEST_F(RunFilesTest, WhatIsWrongWithACheckpointIsSaidBeforeAJobBeginsFromIt) {
    const fs::path folder = folder_ / "elsewhere" / checkpointFolder(1, 7, 0, 0, 1);
    StateSnapshot state;
    state.lineage = 1;
    state.step = state.last.step = 7;
    state.bytes.assign(100, std::byte{5});
    state.hash = bulkhead_state_hash(state.bytes.data(), state.bytes.size());
    model::JobSpec spec;
    spec.shards = 2;
    CheckpointManifest manifest;
    manifest.step = 7;
    manifest.lineage = 1;
    manifest.shards = 2;
    manifest.last = state.last;
    manifest.jobJson = model::toJsonText(spec);
    manifest.dataPosition = encode(begunLedger());
    for (const int32_t shard : {0, 1})
        manifest.files.push_back(*writeShardFile(diskFiles(), folder.string(), shard, state));
    const std::string path = *writeManifest(diskFiles(), folder.string(), manifest);
    EXPECT_TRUE(checkStates(diskFiles(), path).ok());
    const auto found = findCheckpoint(diskFiles(), this->state(), path);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(checkFits(path, *found, spec).ok());
    spec.shards = 1;
    EXPECT_THAT(std::string(checkFits(path, *found, spec).message()),
                HasSubstr("was written with 2 shards and the job has 1"));

    const std::string other = (folder_ / "other.json").string();
    for (const auto& [text, says] : {std::pair{"{\"name\": \"demo\"}", "key '"},
                                     {"{", "not JSON: error at byte 2"},
                                     {"[1]", "a JSON array, expected an object"}}) {
        write(other, text);
        const std::string wrong(
            findCheckpoint(diskFiles(), this->state(), other).status().message());
        EXPECT_THAT(wrong, HasSubstr(other + " is no checkpoint manifest: "));
        EXPECT_THAT(wrong, HasSubstr(says));
        EXPECT_THAT(wrong, HasSubstr("; name the manifest.json of a checkpoint"));
        EXPECT_THAT(wrong, testing::Not(HasSubstr("json.exception")));
    }
    manifest.step = 8;
    write(path, manifestText(manifest));
    EXPECT_THAT(std::string(checkStates(diskFiles(), path).message()),
                HasSubstr(path + " says step 8 and its last_record is of step 7"));
    manifest.step = 7;
    write(path, manifestText(manifest));
    fs::remove(folder / "shard-1.state");
    for (const absl::Status& s : {checkStates(diskFiles(), path),
                                  findCheckpoint(diskFiles(), this->state(), path).status()})
        EXPECT_THAT(std::string(s.message()), HasSubstr("/shard-1.state is missing"));
}

TEST_F(RunFilesTest, TheStepsOfALogAreReadOrItIsSaidWhyNot) {
    run("a", begun());
    EXPECT_TRUE(logLinks(diskFiles(), runDir("a")).ok());
    EXPECT_TRUE(absl::IsNotFound(logLinks(diskFiles(), runDir("none")).status()));
    write(folder_ / "empty" / "commit.log", "");
    EXPECT_TRUE(absl::IsDataLoss(logLinks(diskFiles(), runDir("empty")).status()));
    fs::create_directories(folder_ / "loop");
    fs::create_symlink("commit.log", folder_ / "loop" / "commit.log");
    const absl::Status loop = logLinks(diskFiles(), runDir("loop")).status();
    EXPECT_FALSE(loop.ok() || absl::IsNotFound(loop)) << loop;

    run("cut", begun());
    model::JobSpec spec = *readSpec(diskFiles(), runDir("cut"));
    spec.name = "cut";
    spec.checkpointDir = runDir("cut") + "/checkpoints";
    stored(spec, 1, 0);
    EXPECT_TRUE(logLinks(diskFiles(), runDir("cut")).ok()) << "before its first step";
    stored(spec, 1, 30);
    const absl::Status cut = logLinks(diskFiles(), runDir("cut")).status();
    EXPECT_TRUE(absl::IsDataLoss(cut));
    EXPECT_THAT(std::string(cut.message()),
                HasSubstr("it ends with step 0, and the run has a checkpoint of step 30"));
}

TEST_F(RunFilesTest, ALogThatGrowsWhileItIsReadIsNotBehindItsCheckpoints) {
    std::vector<protocol::LogEntry> entries = begun();
    run("a", entries);
    model::JobSpec spec = *readSpec(diskFiles(), runDir("a"));
    spec.name = "a";
    spec.checkpointDir = runDir("a") + "/checkpoints";
    uint64_t step = 0;
    const GrowingFiles growing([&] {
        protocol::LogCommit commit;
        commit.record.lineage = 1;
        commit.record.step = ++step;
        entries.push_back(commit);
        run("a", entries);
        stored(spec, 1, step);
    });
    const auto links = logLinks(growing, runDir("a"));
    EXPECT_TRUE(links.ok()) << links.status();
}

TEST_F(RunFilesTest, OfADamagedLogTheWholeCheckpointsCount) {
    const std::string five = manifest("five"), ten = manifest("ten");
    auto entries = begun();
    entries.push_back(checkpoint(5, five));
    entries.push_back(checkpoint(10, ten));
    entries.push_back(checkpoint(15, "/gone"));
    run("a", entries);
    damage("a");
    ASSERT_FALSE(readLog(diskFiles(), runDir("a")).ok());
    EXPECT_EQ(findCheckpoint(diskFiles(), state(), "a")->checkpoint.path, ten);
    EXPECT_EQ(findCheckpoint(diskFiles(), state(), five)->checkpoint.step, 5u);
    EXPECT_TRUE(absl::IsNotFound(findCheckpoint(diskFiles(), state(), "/gone").status()));

    run("b", begun());
    auto tail = begun();
    tail.push_back(protocol::LogEpochs{1});
    run("c", tail);
    damage("c");
    EXPECT_TRUE(absl::IsDataLoss(findCheckpoint(diskFiles(), state(), "c").status()))
        << "nothing of it is whole but the damage is told";
    EXPECT_EQ(findCheckpoint(diskFiles(), state(), ten)->spec.name, "a") << "others are read on";
}

TEST_F(RunFilesTest, AnOrphansCheckpointIsFoundByItsRecords) {
    run("a", begun());
    const model::JobSpec spec = *readSpec(diskFiles(), runDir("a"));
    std::vector<CommitRecord> records(4);
    for (size_t i = 0; i < records.size(); ++i) {
        records[i].lineage = 1;
        records[i].step = 4 + i;
    }
    const std::string told = stored(spec, 1, 5), orphan = stored(spec, 1, 7, 'a', records);
    damage("a");
    const auto byRun = findCheckpoint(diskFiles(), state(), "a");
    ASSERT_TRUE(byRun.ok()) << byRun.status();
    EXPECT_EQ(byRun->checkpoint.path, orphan);
    fs::remove_all(runDir("a"));
    const auto byPath = findCheckpoint(diskFiles(), state(), orphan);
    ASSERT_TRUE(byPath.ok()) << byPath.status();
    EXPECT_EQ(byPath->checkpoint.step, 7u);
    fs::remove_all(folderOf(told));
    const auto alone = findCheckpoint(diskFiles(), state(), orphan);
    EXPECT_THAT(std::string(alone.status().message()),
                HasSubstr("does not say which samples it has seen"));
}

TEST_F(RunFilesTest, TextIsCopiedUpToItsBound) {
    write(folder_ / "text" / "t.txt", std::string(100, 'x'));
    model::JobSpec spec;
    model::DomainSpec domain;
    domain.name = "d";
    domain.paths = {(folder_ / "text").string()};
    spec.domains = {domain};
    spec.dataCopyBytes = 99;
    ASSERT_TRUE(takeText(spec, runDir("a"), nullptr).ok());
    EXPECT_EQ(spec.domains[0].paths, domain.paths) << "too large";
    spec.dataCopyBytes = 100;
    ASSERT_TRUE(takeText(spec, runDir("a"), nullptr).ok());
    EXPECT_THAT(spec.domains[0].paths.at(0), HasSubstr(runDir("a")));
    model::JobSpec next;
    next.domains = {domain};
    next.dataCopyBytes = 0;
    ASSERT_TRUE(takeText(next, runDir("b"), nullptr).ok());
    EXPECT_EQ(next.domains[0].paths, domain.paths);
}

TEST_F(RunFilesTest, TwoCoordinatorsCannotHoldARunAtOnce) {
    fs::create_directories(runDir("one"));
    {
        const auto first = lockRun(diskFiles(), runDir("one"));
        ASSERT_TRUE(first.ok()) << first.status();
        const auto second = lockRun(diskFiles(), runDir("one"));
        EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
        EXPECT_THAT(std::string(second.status().message()), HasSubstr(runDir("one")));
    }
    EXPECT_TRUE(lockRun(diskFiles(), runDir("one")).ok());
}

TEST_F(RunFilesTest, TwoControllersCannotWriteCheckpointsToOneFolder) {
    const std::string folder = (folder_ / "checkpoints").string();
    fs::create_directories(folder);
    const auto first = lockCheckpoints(diskFiles(), folder);
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second = lockCheckpoints(diskFiles(), folder);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("a copy of one that is in use"));
    EXPECT_TRUE(claimCheckpoints(diskFiles(), folder).ok()) << "a lock is no checkpoint";
    const auto falls = [](const FileLock& lock) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (lock.stands() && std::chrono::steady_clock::now() < end)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return !lock.stands();
    };
    for (int i = 0; i < 20; ++i) EXPECT_TRUE((*first)->stands());
    fs::remove(folder + "/controller.lock");
    EXPECT_TRUE(falls(**first));
    {
        const auto next = lockCheckpoints(diskFiles(), folder);
        ASSERT_TRUE(next.ok());
        fs::rename(folder + "/controller.lock", folder + "/away");
        write(folder + "/controller.lock", "");
        EXPECT_TRUE(falls(**next)) << "another file";
        fs::remove(folder + "/away");
    }
    write(folder + "/l1/manifest.json", "{}");
    EXPECT_TRUE(absl::IsInvalidArgument(claimCheckpoints(diskFiles(), folder)));

    // By another path, and from below another parent.
    fs::create_directories(folder_ / "other");
    fs::create_directory_symlink(folder, folder_ / "other" / "ck");
    const auto again = lockCheckpoints(diskFiles(), folder);
    ASSERT_TRUE(again.ok());
    EXPECT_FALSE(lockCheckpoints(diskFiles(), (folder_ / "other" / "ck").string()).ok());
}

/// Nobody would notice that the run begins anew.
TEST_F(RunFilesTest, ALogThatLacksWhatTheRunsCheckpointsProveIsRefused) {
    run("a", begun());
    const model::JobSpec spec = *readSpec(diskFiles(), runDir("a"));
    const std::string five = stored(spec, 1, 5), seven = stored(spec, 1, 7);
    std::string id;
    const auto check = [&](const std::vector<protocol::LogEntry>& entries, uint64_t step,
                           bool knows) {
        protocol::RecoveredState recovered;
        recovered.lineage = entries.empty() ? 0 : 1;
        recovered.step = step;
        const absl::Status s =
            checkLog(diskFiles(), runDir("a"), spec, entries, recovered, id, knows);
        EXPECT_TRUE(s.ok() || absl::IsDataLoss(s)) << s;
        return std::string(s.message());
    };
    EXPECT_THAT(check({}, 0, false), HasSubstr("has nothing of this run"));
    EXPECT_THAT(check({}, 0, false), HasSubstr("of step 7"));
    EXPECT_THAT(check({}, 0, false), HasSubstr("bulkheadctl start --resume " + seven));
    EXPECT_THAT(check(begun(), 5, false), HasSubstr("ends with step 5"));
    EXPECT_EQ(check(begun(), 5, true), "") << "history says so, and by how much";
    EXPECT_EQ(check(begun(), 7, false), "");
    id = std::string(32, 'a');
    EXPECT_EQ(check(begun(), 7, false), "");
    id = std::string(32, 'b');
    EXPECT_THAT(check(begun(), 7, true), HasSubstr("is another run's"));
    EXPECT_THAT(check({}, 0, false), HasSubstr("has nothing of this run")) << "its id is new";
    id = "";
    auto entries = begun();
    protocol::LogCommit commit;
    commit.record.lineage = 1;
    commit.record.step = 5;
    entries.push_back(commit);
    EXPECT_EQ(check(entries, 7, false), "");
    std::get<protocol::LogCommit>(entries.back()).record.tokens = 99;
    for (const bool knows : {false, true})
        EXPECT_THAT(check(entries, 7, knows), HasSubstr("is another run's"));
    // The run's own: its disk had lost that the step was committed, and it was done again.
    id = std::string(32, 'a');
    EXPECT_THAT(check(entries, 7, true), HasSubstr("is another run's")) << "the log does not say";
    {
        protocol::RecoveredState recovered;
        recovered.lineage = 1;
        recovered.step = 7;
        recovered.run = id;
        EXPECT_TRUE(checkLog(diskFiles(), runDir("a"), spec, entries, recovered, id, true).ok());
    }
    id = "";
    fs::remove_all(spec.checkpointDir);
    EXPECT_EQ(check({}, 0, false), "");

    write(folder_ / "c" / "checkpoints" / "l" / "manifest.json", "any");
    EXPECT_TRUE(isRun(diskFiles(), runDir("c"))) << "nothing else of it is left";
}

TEST_F(RunFilesTest, AStateDirectoryThatWasMovedIsWholeWhereItLies) {
    const auto home = [&](const fs::path& state) { return (state / "a").string(); };
    model::JobSpec spec;
    spec.name = "a";
    spec.checkpointDir = home(state()) + "/checkpoints";
    model::DomainSpec domain;
    domain.name = "d";
    domain.paths = {home(state()) + "/text/d"};
    spec.domains = {domain};
    write(domain.paths[0], "verse");
    const std::string manifest = stored(spec, 1, 7);
    protocol::LogCheckpoint logged = checkpoint(7, manifest);
    std::string log(protocol::kLogHeader);
    auto entries = begun();
    entries.push_back(logged);
    entries.push_back(protocol::LogCheckpointsDropped{{manifest}, false});
    for (const auto& e : entries) log += protocol::encodeEntry(e);
    write(folder_ / "a" / "job.json", model::toJsonText(spec));
    write(folder_ / "a" / "commit.log", log);
    ASSERT_TRUE(writeIdentity(diskFiles(), runDir("a"), std::string(32, 'a')).ok());

    const auto check = [&](const std::string& lies, const std::string& leads) {
        SCOPED_TRACE(lies);
        const auto read = readSpec(diskFiles(), lies);
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_EQ(read->checkpointDir, leads + "/checkpoints");
        EXPECT_EQ(read->domains[0].paths[0], leads + "/text/d");
        EXPECT_TRUE(checkUnedited(diskFiles(), lies, *read).ok());
        const auto is = *readLog(diskFiles(), lies);
        const std::string path = leads + "/checkpoints/" +
                                 fs::path(manifest).parent_path().filename().string() +
                                 "/manifest.json";
        EXPECT_EQ(std::get<protocol::LogCheckpoint>(is.at(2)).path, path);
        EXPECT_THAT(std::get<protocol::LogCheckpointsDropped>(is.at(3)).paths, ElementsAre(path));
    };
    const fs::path moved = folder_.string() + "-moved";
    fs::remove_all(moved);
    fs::create_directories(moved);
    check(runDir("a"), runDir("a"));
    fs::copy(runDir("a"), moved / "a", fs::copy_options::recursive);
    check(home(moved), home(moved));
    fs::remove_all(runDir("a"));
    check(home(moved), home(moved));
    fs::rename(moved / "a", moved / "b");
    check((moved / "b").string(), (moved / "b").string());
    // A run that began from it and reads its text.
    spec.checkpointDir = home(state()).replace(home(state()).size() - 1, 1, "e") + "/checkpoints";
    fs::rename(moved / "b", moved / "a");
    write(moved / "e" / "job.json", model::toJsonText(spec));
    fs::create_directories(moved / "e" / "checkpoints");
    const auto next = readSpec(diskFiles(), (moved / "e").string());
    EXPECT_EQ(next->domains[0].paths[0], home(moved) + "/text/d");
    EXPECT_EQ(next->checkpointDir, (moved / "e" / "checkpoints").string());
    fs::remove_all(moved);
}

TEST_F(RunFilesTest, AnotherRunsLogEndsNothingAndHidesNoCheckpoint) {
    auto foreign = begun();
    foreign[0] = protocol::LogTerm{1, std::string(32, 'b')};
    foreign.push_back(protocol::LogFinished{});
    run("a", foreign);
    EXPECT_TRUE(unfinishedRuns(diskFiles(), state()).empty()) << "nothing says whose it is";
    ASSERT_TRUE(writeIdentity(diskFiles(), runDir("a"), std::string(32, 'a')).ok());
    EXPECT_THAT(unfinishedRuns(diskFiles(), state()), ElementsAre("a"));
    write(folder_ / "a" / "id", "torn");
    EXPECT_EQ(runIdentity(diskFiles(), runDir("a")), "");
}

TEST_F(RunFilesTest, AnotherRunsCheckpointsBesideItsOwnCountForNothing) {
    auto entries = begun();
    entries[0] = protocol::LogTerm{1, std::string(32, 'a')};
    run("a", entries);
    ASSERT_TRUE(writeIdentity(diskFiles(), runDir("a"), std::string(32, 'a')).ok());
    const model::JobSpec spec = *readSpec(diskFiles(), runDir("a"));
    const std::string own = stored(spec, 1, 5);
    stored(spec, 1, 9, 'b');
    protocol::RecoveredState recovered;
    recovered.lineage = 1;
    recovered.step = 7;
    const auto check = [&] {
        return checkLog(diskFiles(), runDir("a"), spec, entries, recovered, std::string(32, 'a'),
                        false);
    };
    EXPECT_TRUE(check().ok()) << check();
    EXPECT_EQ(findCheckpoint(diskFiles(), state(), "a")->checkpoint.path, own);
    const auto found = checkpointsOnDisk(diskFiles(), runDir("a"), spec);
    ASSERT_TRUE(found.ok()) << found.status();
    for (const protocol::LogCheckpoint& c : *found) EXPECT_EQ(c.path, own);
    fs::remove_all(folderOf(own));
    EXPECT_TRUE(absl::IsDataLoss(check())) << "whose folder it is nobody can say";
}

TEST_F(RunFilesTest, ARunThatLostItsLogDoesNotBeginBesideCheckpointsThatCannotBeRead) {
    run("a", begun());
    const model::JobSpec spec = *readSpec(diskFiles(), runDir("a"));
    write(stored(spec, 1, 30), "");
    protocol::RecoveredState recovered;
    recovered.lineage = 1;
    const auto check = [&](uint64_t step, bool knows) {
        recovered.step = step;
        return checkLog(diskFiles(), runDir("a"), spec, begun(), recovered, "", knows);
    };
    EXPECT_TRUE(absl::IsDataLoss(check(0, false))) << check(0, false);
    EXPECT_THAT(std::string(check(0, false).message()), HasSubstr("has a checkpoint of step 30"));
    EXPECT_TRUE(check(30, false).ok());
    EXPECT_TRUE(check(0, true).ok());
    EXPECT_THAT(std::string(findCheckpoint(diskFiles(), state(), "a").status().message()),
                HasSubstr("put back what was there"));
}

TEST_F(RunFilesTest, CheckpointsThatAreAwayAreWaitedForAndFoundWhenTheyAreBack) {
    auto entries = begun();
    entries[0] = protocol::LogTerm{1, std::string(32, 'a')};
    run("a", entries);
    ASSERT_TRUE(writeIdentity(diskFiles(), runDir("a"), std::string(32, 'a')).ok());
    const model::JobSpec spec = *readSpec(diskFiles(), runDir("a"));
    const std::string path = stored(spec, 1, 5);
    const auto logged = checkpoint(5, path);
    entries.push_back(logged);
    entries.push_back(protocol::LogCheckpointsDropped{{path}, true});  // nobody could load it
    entries.push_back(protocol::LogFinished{false, "there is no other checkpoint"});
    run("a", entries);
    const std::string away = (folder_ / "away").string();
    fs::rename(spec.checkpointDir, away);
    const auto check = [&](const std::vector<protocol::LogCheckpoint>& known, bool settled) {
        return checkInPlace(diskFiles(), runDir("a"), spec, entries, known, settled);
    };
    EXPECT_TRUE(check({}, false).ok()) << "there never was one";
    EXPECT_TRUE(absl::IsUnavailable(check({logged}, true))) << "however long it takes";
    const absl::Status gone = check({logged}, false);
    EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
    EXPECT_THAT(std::string(gone.message()), HasSubstr(path));
    const auto none = findCheckpoint(diskFiles(), state(), "a").status();
    EXPECT_THAT(std::string(none.message()), HasSubstr("put back " + path));
    stored(spec, 1, 9);
    EXPECT_TRUE(check({logged}, false).ok()) << "its folder is there, and a later one in it";
    fs::remove_all(spec.checkpointDir);
    stored(spec, 1, 9, 'b');
    EXPECT_THAT(std::string(check({logged}, true).message()), HasSubstr("is another run's"));
    fs::remove_all(spec.checkpointDir);
    fs::rename(away, spec.checkpointDir);
    EXPECT_TRUE(check({logged}, false).ok());
    const auto back = findCheckpoint(diskFiles(), state(), "a");
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->checkpoint.path, path);
}

TEST_F(RunFilesTest, TheNewestCheckpointIsWaitedForAsLongAsItsFolderChanges) {
    auto entries = begun();
    entries[0] = protocol::LogTerm{1, std::string(32, 'a')};
    run("a", entries);
    ASSERT_TRUE(writeIdentity(diskFiles(), runDir("a"), std::string(32, 'a')).ok());
    const model::JobSpec spec = *readSpec(diskFiles(), runDir("a"));
    const std::string five = stored(spec, 1, 5), seven = stored(spec, 1, 7);
    const std::string shard = folderOf(seven) + "/shard-0.state";
    const auto check = [&](bool settled) {
        return checkInPlace(diskFiles(), runDir("a"), spec, entries,
                            {checkpoint(5, five), checkpoint(7, seven)}, settled);
    };
    EXPECT_TRUE(check(false).ok());
    const std::string whole = *diskFiles().read(shard);
    const std::string before = inventoryOf(diskFiles(), spec.checkpointDir);
    write(shard, whole.substr(0, whole.size() - 1));
    EXPECT_NE(inventoryOf(diskFiles(), spec.checkpointDir), before);
    EXPECT_TRUE(absl::IsUnavailable(check(false)));
    EXPECT_THAT(std::string(check(false).message()), HasSubstr(shard + " has "));
    EXPECT_THAT(std::string(check(false).message()), HasSubstr("from step 5"));
    EXPECT_TRUE(check(true).ok()) << "step 5 is what is left";
    fs::remove_all(folderOf(five));
    EXPECT_TRUE(absl::IsUnavailable(check(true))) << "nothing is left to go on from";
    write(shard, whole);
    EXPECT_TRUE(check(false).ok());
    EXPECT_EQ(inventoryOf(diskFiles(), folder_ / "nowhere"), "");
}

/// Somebody put the folders of two runs crosswise.
TEST_F(RunFilesTest, AnotherRunsCheckpointsSayNothingOfAJob) {
    auto entries = begun();
    entries[0] = protocol::LogTerm{1, std::string(32, 'a')};
    run("a", entries);
    ASSERT_TRUE(writeIdentity(diskFiles(), runDir("a"), std::string(32, 'a')).ok());
    model::JobSpec spec = *readSpec(diskFiles(), runDir("a"));
    spec.seed = 99;
    spec.checkpointDir = runDir("a") + "/checkpoints";
    const std::string other = stored(spec, 1, 9, 'b');
    const model::JobSpec own = *readSpec(diskFiles(), runDir("a"));
    EXPECT_TRUE(checkUnedited(diskFiles(), runDir("a"), own).ok());
    EXPECT_FALSE(findCheckpoint(diskFiles(), state(), "a").ok());
    protocol::RecoveredState recovered;
    recovered.lineage = 1;
    const absl::Status refused =
        checkLog(diskFiles(), runDir("a"), spec, entries, recovered, std::string(32, 'a'), true);
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), testing::Not(HasSubstr("--resume")));
    EXPECT_EQ(findCheckpoint(diskFiles(), state(), other)->checkpoint.step, 9u) << "by its path";
}

TEST_F(RunFilesTest, ALogOfAnotherBuildIsNotGoneOnFrom) {
    run("a", begun());
    const model::JobSpec spec = *readSpec(diskFiles(), runDir("a"));
    const std::string path = stored(spec, 1, 5);
    std::string entry = protocol::encodeEntry(protocol::LogTerm{2});
    const std::string later("\xff\xff\xff\xff later", 10);  // a body that nothing here reads
    const uint32_t length = static_cast<uint32_t>(later.size());
    const uint64_t sum = XXH3_64bits(later.data(), later.size());
    std::memcpy(entry.data() + 4, &length, sizeof length);
    std::memcpy(entry.data() + 8, &sum, sizeof sum);
    std::ofstream(runDir("a") + "/commit.log", std::ios::binary | std::ios::app)
        << entry.substr(0, 16) << later;
    for (const absl::Status& s : {findCheckpoint(diskFiles(), state(), "a").status(),
                                  readLog(diskFiles(), runDir("a")).status()}) {
        EXPECT_TRUE(absl::IsFailedPrecondition(s)) << s;
        EXPECT_THAT(std::string(s.message()), HasSubstr("another build of Bulkhead wrote it"));
    }
    EXPECT_EQ(findCheckpoint(diskFiles(), state(), path)->checkpoint.step, 5u)
        << "who has no other build left names the file";
}

}  // namespace
}  // namespace bulkhead::runtime
