// SPDX-License-Identifier: Apache-2.0
#include "backend/history/run_store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "backend/common/codec.h"
#include "backend/history/schema.h"
#include "tests/history/store_fixture.h"

namespace bulkhead::history {
namespace {

using testing::HasSubstr;

model::StepCommitted committed(uint64_t step, uint64_t lineage = 1) {
    model::StepCommitted e;
    e.record.step = step;
    e.record.lineage = lineage;
    e.record.contributors = {{0, 1, {}}, {2, 1, {}}};
    e.record.samples = 8;
    e.record.lrFactorBits = 0x3f000000;  // 0.5
    e.loss = 4.5;
    e.shards = {{0, 0xabcull, 1.0}, {1, 0xdefull, 1.0}};
    model::ReplicaLedger fast;
    fast.computeMs = 10;
    fast.bytes = 100;
    model::ReplicaLedger slow;
    slow.replica = 2;
    slow.computeMs = 30;
    slow.bytes = 50;
    slow.waitedOnMs = 7;
    slow.waitedOn = 0;
    e.replicas = {fast, slow};
    return e;
}

using RunStore = StoreTest;

TEST_F(RunStore, readsBackEveryEventAsItWas) {
    const std::vector<model::Event> events = someEvents(1, 700);
    auto writing = writer();
    for (const model::Event& event : events) ASSERT_TRUE(writing->append(event).ok());
    ASSERT_TRUE(writing->flush().ok());
    EXPECT_EQ(writing->durableSeq(), 700u);
    const auto back = reader()->events(writing->runId(), {});
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(back->size(), events.size());
    for (size_t i = 0; i < events.size(); ++i)
        ASSERT_EQ(encode((*back)[i]), encode(events[i])) << i;
    const absl::Status verified = reader()->verify(writing->runId());
    EXPECT_TRUE(verified.ok()) << verified;
}

TEST_F(RunStore, seeksToWhatFoldingGives) {
    const std::vector<model::Event> events = someEvents(2, 400);
    WriterOptions options;
    options.keyframeEvents = 50;
    options.batchEvents = 32;
    auto writing = writer("demo", options);
    for (const model::Event& event : events) ASSERT_TRUE(writing->append(event).ok());
    ASSERT_TRUE(writing->flush().ok());
    auto reading = reader();
    model::RunState folded;
    for (const model::Event& event : events) {
        model::apply(folded, event);
        if (event.seq % 37 != 0) continue;
        const auto sought = reading->stateAtSeq(writing->runId(), event.seq);
        ASSERT_TRUE(sought.ok()) << sought.status();
        EXPECT_EQ(model::encodeKeyframe(*sought), model::encodeKeyframe(folded)) << event.seq;
        EXPECT_EQ(*reading->seqAtTime(writing->runId(), event.timeNs + 1), event.seq);
    }
    const auto early = reading->stateAtTime(writing->runId(), 5);
    ASSERT_TRUE(early.ok());
    EXPECT_EQ(early->seq, 0u);
    EXPECT_TRUE(reading->verify(writing->runId()).ok());
}

TEST_F(RunStore, aLoadTellsItsProgressAndCanBeGivenUp) {
    auto writing = writer();
    const std::vector<model::Event> events = someEvents(3, 100);
    for (const model::Event& event : events) ASSERT_TRUE(writing->append(event).ok());
    ASSERT_TRUE(writing->flush().ok());
    auto reading = reader();
    std::vector<uint64_t> told;
    uint64_t all = 0;
    const auto whole = reading->stateAtSeq(1, 100, [&](uint64_t done, uint64_t of) {
        told.push_back(done);
        all = of;
        return true;
    });
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(told.size(), 100u);
    EXPECT_EQ(told.back(), all);
    const auto given =
        reading->stateAtSeq(1, 100, [](uint64_t done, uint64_t) { return done < 7; });
    EXPECT_TRUE(absl::IsCancelled(given.status())) << given.status();
}

TEST_F(RunStore, aPageEndsAtItsBytesButHasAtLeastOneEvent) {
    auto writing = writer();
    for (const model::Event& event : someEvents(3, 100)) ASSERT_TRUE(writing->append(event).ok());
    ASSERT_TRUE(writing->flush().ok());
    auto reading = reader();
    EventFilter filter;
    filter.limitBytes = 1;
    EXPECT_EQ(reading->events(1, filter)->size(), 1u);
    filter.limitBytes = 2000;
    const size_t some = reading->events(1, filter)->size();
    EXPECT_GT(some, 1u);
    EXPECT_LT(some, 100u);
}

TEST_F(RunStore, keepsTheLedgerOfSteps) {
    auto writing = writer();
    uint64_t seq = 0;
    ASSERT_TRUE(writing->append(eventAt(++seq, 1, model::LineageOpened{1, 0, 1, ""})).ok());
    for (uint64_t step = 1; step <= 5; ++step)
        ASSERT_TRUE(writing->append(eventAt(++seq, 100, committed(step))).ok());
    ASSERT_TRUE(writing->append(eventAt(++seq, 200, model::StepsSuspect{1, 2, "parity"})).ok());
    ASSERT_TRUE(writing->append(eventAt(++seq, 300, model::LineageOpened{2, 3, 2, "lost"})).ok());
    ASSERT_TRUE(writing->append(eventAt(++seq, 400, committed(4, 2))).ok());
    ASSERT_TRUE(writing->flush().ok());
    auto reading = reader();
    const auto rows = reading->ledger(writing->runId(), {});
    ASSERT_TRUE(rows.ok()) << rows.status();
    ASSERT_EQ(rows->size(), 6u);
    const LedgerRow& first = rows->front();
    EXPECT_EQ(first.members, "0,2");
    EXPECT_DOUBLE_EQ(first.lrFactor, 0.5);
    EXPECT_DOUBLE_EQ(first.computeMs, 30);
    EXPECT_EQ(first.bytes, 150u);
    EXPECT_EQ(first.waitedOn, 0);
    EXPECT_EQ(first.hashes, "0000000000000abc,0000000000000def");
    EXPECT_FALSE((*rows)[0].suspect);
    EXPECT_TRUE((*rows)[1].suspect);
    EXPECT_FALSE((*rows)[2].superseded);
    EXPECT_TRUE((*rows)[3].superseded);
    EXPECT_TRUE((*rows)[4].superseded);
    EXPECT_FALSE((*rows)[5].superseded);
    LedgerFilter valid;
    valid.withSuperseded = false;
    EXPECT_EQ(reading->ledger(writing->runId(), valid)->size(), 4u);
    EXPECT_EQ(*reading->seqOfStep(writing->runId(), 4), seq);
    EXPECT_EQ(reading->seqOfStep(writing->runId(), 99).status().code(),
              absl::StatusCode::kNotFound);
    EXPECT_TRUE(reading->verify(writing->runId()).ok());
}

TEST_F(RunStore, keepsIncidentsFaultsAndCheckpoints) {
    auto writing = writer();
    model::FaultSpec kill;
    kill.replica = 2;
    const std::vector<model::EventBody> bodies = {
        model::RunStarted{},
        model::FaultInjected{1, kill, 5, "operator"},
        model::EvidenceSeen{model::EvidenceKind::kProcessExit, 2, 0, "agent", "signal 9"},
        model::IncidentOpened{1, 2, 1, 5, model::EvidenceKind::kProcessExit, 1, "r2 lost"},
        model::IncidentPhase{1, model::IncidentPhaseKind::kDetect, 10, 4'000'010},
        model::IncidentClosed{1, 4, 900, 1.5, 3, "rejoined at step 9"},
        model::FaultEnded{1, "done"},
        model::CheckpointWritten{9, 0, "/c/9", 1000, 12.5, true, ""}};
    uint64_t seq = 0;
    for (const model::EventBody& body : bodies) {
        model::Event event;
        event.seq = ++seq;
        event.timeNs = static_cast<int64_t>(seq) * 10;
        event.body = body;
        ASSERT_TRUE(writing->append(event).ok());
    }
    ASSERT_TRUE(writing->flush().ok());
    auto reading = reader();
    const auto incidents = reading->incidents(writing->runId());
    ASSERT_TRUE(incidents.ok()) << incidents.status();
    ASSERT_EQ(incidents->size(), 1u);
    EXPECT_EQ(incidents->front().outcome, "rejoined at step 9");
    EXPECT_EQ(incidents->front().evidence.size(), 1u);
    EXPECT_EQ(incidents->front().phases.size(), 1u);
    EXPECT_EQ(reading->faults(writing->runId())->front().incidents, std::vector<uint64_t>{1});
    EXPECT_EQ(reading->checkpoints(writing->runId())->front().checkpoint.path, "/c/9");
    EXPECT_EQ(reading->run(writing->runId())->incidents, 1u);
    EXPECT_TRUE(reading->verify(writing->runId()).ok());
}

TEST_F(RunStore, filtersEvents) {
    auto writing = writer();
    uint64_t seq = 0;
    for (int32_t replica : {0, 1, 2}) {
        model::Event event =
            eventAt(++seq, 10 * replica,
                    model::RankOutput{{replica, 0}, 1, false, replica == 1 ? "Hello" : "bye"});
        event.severity = replica == 2 ? model::Severity::kWarning : model::Severity::kInfo;
        ASSERT_TRUE(writing->append(event).ok());
    }
    ASSERT_TRUE(writing->append(eventAt(++seq, 40, committed(1))).ok());
    ASSERT_TRUE(writing->flush().ok());
    auto reading = reader();
    const auto seqs = [&](const EventFilter& filter) {
        std::vector<uint64_t> out;
        const auto events = reading->events(writing->runId(), filter);
        EXPECT_TRUE(events.ok()) << events.status();
        for (const model::Event& event : *events) out.push_back(event.seq);
        return out;
    };
    using Seqs = std::vector<uint64_t>;
    EventFilter f;
    f.replica = 1;
    EXPECT_EQ(seqs(f), (Seqs{2}));
    f = {};
    f.text = "hELLo";
    EXPECT_EQ(seqs(f), (Seqs{2}));
    f = {};
    f.minSeverity = model::Severity::kWarning;
    EXPECT_EQ(seqs(f), (Seqs{3}));
    f = {};
    f.types = {"step_committed", "run_finished"};
    EXPECT_EQ(seqs(f), (Seqs{4}));
    f = {};
    f.fromNs = 10;
    f.toNs = 20;
    EXPECT_EQ(seqs(f), (Seqs{2, 3}));
    f = {};
    f.newestFirst = true;
    f.limit = 2;
    EXPECT_EQ(seqs(f), (Seqs{4, 3}));
}

TEST_F(RunStore, givesRunsNamesOfTheirOwn) {
    EXPECT_EQ(writer("demo")->info().name, "demo");
    EXPECT_EQ(writer("demo")->info().name, "demo-2");
    EXPECT_EQ(writer("demo")->info().name, "demo-3");
    EXPECT_EQ(renameRun(file_, 1, "demo-2").code(), absl::StatusCode::kAlreadyExists);
    EXPECT_TRUE(renameRun(file_, 1, "night run").ok());
    EXPECT_TRUE(setRunNote(file_, 1, "the one with the Cut cable").ok());
    EXPECT_EQ(setRunNote(file_, 99, "x").code(), absl::StatusCode::kNotFound);
    auto reading = reader();
    RunFilter cable;
    cable.text = "cut cable";
    const auto found = reading->runs(cable);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->size(), 1u);
    EXPECT_EQ(found->front().name, "night run");
    EXPECT_EQ(reading->runs({})->size(), 3u);
    EXPECT_EQ(reading->findRun("demo-3")->id, 3);
    EXPECT_EQ(reading->findRun("2")->name, "demo-2");
    EXPECT_EQ(reading->findRun("latest")->id, 3);
    EXPECT_EQ(reading->findRun("nothing").status().code(), absl::StatusCode::kNotFound);
    {
        const auto told = writer("told");
        ASSERT_TRUE(told->append(eventAt(1, 1, model::LineageOpened{1, 0, 1, ""})).ok());
        ASSERT_TRUE(told->flush().ok());
    }
    for (const int64_t id : {3, 4}) EXPECT_TRUE(removeUnusedRun(file_, id).ok());
    EXPECT_EQ(reading->findRun("demo-3").status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(reading->findRun("told")->id, 4) << "it has an event";
    EXPECT_EQ(writer("demo-3")->info().name, "demo-3") << "the name is free again";
}

TEST_F(RunStore, aWriterReplacesWhatOneBeforeItWroteOnUntilItKnew) {
    const auto note = [](uint64_t seq) {
        return eventAt(seq, static_cast<int64_t>(seq),
                       model::JobPhaseChanged{model::JobPhase::kTraining, ""});
    };
    auto before = writer();
    for (uint64_t seq = 1; seq <= 10; ++seq) ASSERT_TRUE(before->append(note(seq)).ok());
    ASSERT_TRUE(before->flush().ok());
    ASSERT_TRUE(releaseWriters(file_).ok());
    auto now = RunWriter::resume(file_, before->runId(), clock_);
    ASSERT_TRUE(now.ok()) << now.status();
    for (uint64_t seq = 11; seq <= 16; ++seq)
        ASSERT_TRUE(before->append(eventAt(seq, 11, committed(seq))).ok());
    ASSERT_TRUE(before->flush().ok());
    for (uint64_t seq = 11; seq <= 20; ++seq) {
        ASSERT_TRUE((*now)->append(seq == 13 ? eventAt(seq, 13, committed(11)) : note(seq)).ok());
        if (seq == 14 || seq == 20) {
            ASSERT_TRUE((*now)->flush().ok());
        }
    }
    const auto reading = reader();
    EXPECT_TRUE(reading->verify((*now)->runId()).ok()) << reading->verify((*now)->runId());
    EXPECT_EQ(reading->run((*now)->runId())->events, 20u);
    EXPECT_EQ(reading->ledger((*now)->runId())->size(), 1u);
}

TEST_F(RunStore, oldRunsGoAndThoseThatAreKeptNewOrWrittenStay) {
    const int64_t now = clock_.unixNs();
    constexpr int64_t kDay = 86'400LL * 1'000'000'000;
    const auto fill = [&](std::string_view name, uint64_t events) {
        auto run = writer(name);
        for (const model::Event& event : someEvents(7, events))
            EXPECT_TRUE(run->append(event).ok());
        EXPECT_TRUE(run->flush(60000).ok());
        return run;
    };
    for (const char* name : {"old", "kept", "older"}) fill(name, 2500);
    const auto living = fill("living", 10);
    {
        const auto fresh = writer("fresh");
        ASSERT_TRUE(
            fresh->append(eventAt(1, now + 2 * kDay, model::LineageOpened{1, 0, 1, ""})).ok());
        ASSERT_TRUE(fresh->flush().ok());
    }
    int left = 4;  // transactions; the second run is cut short by it
    Removal removal{now + kDay,
                    [](const std::string& name) { return name == "kept"; },
                    [&] { return left-- > 0; },
                    {}};
    EXPECT_THAT(removeOldRuns(file_, removal).value(), testing::ElementsAre("old"));
    auto reading = reader();
    EXPECT_FALSE(reading->findRun("old").ok());
    EXPECT_TRUE(reading->findRun("older").ok()) << "a part of it has gone";
    left = 100;
    EXPECT_THAT(removeOldRuns(file_, removal).value(), testing::ElementsAre("older"));
    EXPECT_THAT(removeOldRuns(file_, removal).value(), testing::IsEmpty());
    std::vector<std::string> names;
    const auto runs = reading->runs();
    for (const StoredRun& run : *runs) {
        names.push_back(run.name);
        EXPECT_TRUE(reading->verify(run.id).ok()) << run.name;
    }
    EXPECT_THAT(names, testing::UnorderedElementsAre("kept", "living", "fresh"));
    SQLite::Database db(file_.string());
    for (const char* table : tablesOfRuns())
        EXPECT_EQ(db.execAndGet(std::string("SELECT count(*) FROM ") + table +
                                " WHERE run NOT IN (SELECT id FROM runs)")
                      .getInt(),
                  0)
            << table;
    EXPECT_EQ(writer("old")->info().name, "old") << "the name is free again";
}

TEST_F(RunStore, tellsALivingRunFromAnInterruptedAndAFinishedOne) {
    auto writing = writer();
    const int64_t id = writing->runId();
    ASSERT_TRUE(
        writing->append(eventAt(1, 1, model::JobPhaseChanged{model::JobPhase::kTraining, ""}))
            .ok());
    ASSERT_TRUE(writing->flush().ok());
    auto reading = reader();
    EXPECT_EQ(reading->run(id)->phase, "training");
    writing.reset();
    EXPECT_EQ(reading->run(id)->phase, "interrupted");
    auto again = RunWriter::resume(file_, id, clock_);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(reading->run(id)->phase, "training");
    EXPECT_EQ(RunWriter::resume(file_, id, clock_).status().code(), absl::StatusCode::kUnavailable);
    ASSERT_TRUE((*again)->append(eventAt(2, 2, model::RunFinished{true, "done", 1})).ok());
    again->reset();
    EXPECT_EQ(reading->run(id)->phase, "finished");
}

/// Behind its log because it is being written, or because its disk is full.
TEST_F(RunStore, aLivingRunThatLagsBehindItsLogHasToGrow) {
    auto writing = writer();
    ASSERT_TRUE(writing->append(eventAt(1, 10, model::RunStarted{})).ok());
    ASSERT_TRUE(writing->flush().ok());
    const auto log = []() -> absl::StatusOr<std::vector<model::LogLink>> {
        return std::vector<model::LogLink>{{1, 1, ""}};
    };
    auto report = reader()->audit(1, log);
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_FALSE(report->ok);
    EXPECT_THAT(report->findings[0].what, HasSubstr("its last 1 commits are missing"));
    EXPECT_THAT(report->findings[0].remedy, HasSubstr("free the disk of the run file"));
    std::atomic<bool> done{false};
    uint64_t seq = 1;
    std::thread records([&] {
        while (!done) {
            ++seq;
            EXPECT_TRUE(writing->append(eventAt(seq, 30, model::FleetSampled{})).ok());
            EXPECT_TRUE(writing->flush().ok());
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    });
    report = reader()->audit(1, log);
    done = true;
    records.join();
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok) << report->findings[0].what;
}

TEST_F(RunStore, aRunThatEndsWhileItIsAuditedLacksNothing) {
    auto writing = writer();
    ASSERT_TRUE(writing->append(eventAt(1, 10, model::RunStarted{})).ok());
    ASSERT_TRUE(writing->flush().ok());
    const auto report = reader()->audit(1, [&]() -> absl::StatusOr<std::vector<model::LogLink>> {
        EXPECT_TRUE(writing->append(eventAt(2, 20, model::RunFinished{true, "done", 1})).ok());
        EXPECT_TRUE(writing->flush().ok());
        return std::vector<model::LogLink>{{1, 1, ""}};
    });
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok) << report->findings[0].what;
}

TEST_F(RunStore, goesOnWithARunWhereItEnded) {
    const std::vector<model::Event> events = someEvents(5, 300);
    int64_t id = 0;
    {
        auto writing = writer();
        id = writing->runId();
        for (size_t i = 0; i < 150; ++i) ASSERT_TRUE(writing->append(events[i]).ok());
    }
    {
        auto writing = RunWriter::resume(file_, id, clock_);
        ASSERT_TRUE(writing.ok()) << writing.status();
        EXPECT_EQ((*writing)->lastSeq(), 150u);
        EXPECT_EQ((*writing)->append(events[150 + 1]).code(), absl::StatusCode::kInvalidArgument);
        for (size_t i = 150; i < 300; ++i) ASSERT_TRUE((*writing)->append(events[i]).ok());
    }
    auto reading = reader();
    const absl::Status verified = reading->verify(id);
    EXPECT_TRUE(verified.ok()) << verified;
    EXPECT_EQ(reading->run(id)->events, 300u);
}

TEST_F(RunStore, holdsSeveralRunsWrittenAtOnce) {
    const std::vector<model::Event> events = someEvents(6, 300);
    auto a = writer("a");
    auto b = writer("b");
    for (const model::Event& event : events) {
        ASSERT_TRUE(a->append(event).ok());
        ASSERT_TRUE(b->append(event).ok());
    }
    ASSERT_TRUE(a->flush().ok());
    ASSERT_TRUE(b->flush().ok());
    EXPECT_TRUE(reader()->verify(a->runId()).ok());
    EXPECT_TRUE(reader()->verify(b->runId()).ok());
}

/// SQLite itself notices none of them.
TEST_F(RunStore, noticesThatItsFileWasEmptiedReplacedOrLostWhatLiesBesideIt) {
    const auto become = [](const std::function<bool()>& condition) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!condition() && std::chrono::steady_clock::now() < end)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return condition();
    };
    const auto events = someEvents(3, 40);
    for (const std::string harm : {"emptied", "replaced", "-wal", "-shm"}) {
        SCOPED_TRACE(harm);
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
        const std::filesystem::path other = folder_ / "other.db";
        auto another = RunWriter::create(other, "demo", clock_);
        ASSERT_TRUE(another.ok());
        const std::string uuid = (*another)->info().uuid;
        ASSERT_TRUE((*another)->append(events[0]).ok());
        another->reset();

        WriterOptions options;
        options.retryMs = 10;
        auto written = writer("demo", options);
        for (size_t i = 0; i < 20; ++i) ASSERT_TRUE(written->append(events[i]).ok());
        ASSERT_TRUE(written->flush().ok());
        const auto looks = reader();  // so that SQLite leaves what lies beside it
        ASSERT_TRUE(looks->runs().ok());
        if (harm == "emptied")
            std::filesystem::resize_file(file_, 0);
        else if (harm == "replaced")
            std::filesystem::rename(other, file_);
        else
            ASSERT_TRUE(std::filesystem::remove(file_.string() + harm));
        ASSERT_TRUE(become([&] {
            (void)written->append(events[written->lastSeq()]);
            return !written->flush(100).ok() && absl::IsAborted(written->health());
        })) << written->health();
        const std::string why(written->health().message());
        EXPECT_NE(why.find(harm[0] == '-' ? harm + ": was removed" : "was " + harm),
                  std::string::npos)
            << why;
        written.reset();
        if (harm == "emptied") {
            EXPECT_FALSE(std::filesystem::exists(file_));
            EXPECT_TRUE(std::filesystem::exists(file_.string() + ".emptied"));
            EXPECT_NE(writer(), nullptr) << "a new one is made";
        }
        const auto runs = reader()->runs();
        ASSERT_TRUE(runs.ok()) << runs.status();
        ASSERT_EQ(runs->size(), 1u);
        EXPECT_EQ(harm == "replaced", (*runs)[0].uuid == uuid) << "nothing was written into it";
        if (harm[0] == '-') {
            EXPECT_EQ((*runs)[0].lastSeq, 20u) << "nothing is lost";
        }
    }
}

TEST_F(RunStore, createsFilesThatOnlyTheirOwnerReads) {
    writer().reset();
    struct stat info {};
    ASSERT_EQ(::stat(file_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST_F(RunStore, exportsWithUnits) {
    auto writing = writer();
    ASSERT_TRUE(writing->append(eventAt(1, 7, committed(1))).ok());
    ASSERT_TRUE(writing->flush().ok());
    auto reading = reader();
    std::ostringstream csv;
    ASSERT_TRUE(reading->exportLedger(writing->runId(), ExportFormat::kCsv, csv).ok());
    EXPECT_THAT(csv.str(), HasSubstr("step_ms [ms]"));
    EXPECT_THAT(csv.str(), HasSubstr("loss [nats/token]"));
    EXPECT_THAT(csv.str(), HasSubstr("\"0,2\",8,"));
    std::ostringstream lines;
    ASSERT_TRUE(reading->exportLedger(writing->runId(), ExportFormat::kJsonLines, lines).ok());
    EXPECT_THAT(lines.str(), HasSubstr("\"members\":\"0,2\""));
    std::ostringstream none;
    LedgerFilter later;
    later.fromStep = 2;
    ASSERT_TRUE(reading->exportLedger(writing->runId(), ExportFormat::kCsv, none, later).ok());
    const std::string header = none.str();
    EXPECT_EQ(std::count(header.begin(), header.end(), '\n'), 1);
    std::ostringstream events;
    ASSERT_TRUE(reading->exportEvents(writing->runId(), events, {}).ok());
    EXPECT_THAT(events.str(), HasSubstr("\"type\":\"step_committed\""));
    std::ofstream full("/dev/full");
    EXPECT_EQ(reading->exportEvents(writing->runId(), full, {}).code(),
              absl::StatusCode::kUnavailable);
}

TEST_F(RunStore, noticesTablesThatDisagreeWithTheEvents) {
    auto writing = writer();
    for (uint64_t step = 1; step <= 3; ++step)
        ASSERT_TRUE(writing->append(eventAt(step, 7, committed(step))).ok());
    const int64_t id = writing->runId();
    writing.reset();
    const auto sql = [&](const char* text) {
        sqlite3* db = nullptr;
        ASSERT_EQ(sqlite3_open(file_.c_str(), &db), SQLITE_OK);
        ASSERT_EQ(sqlite3_exec(db, text, nullptr, nullptr, nullptr), SQLITE_OK);
        sqlite3_close(db);
    };
    ASSERT_TRUE(reader()->verify(id).ok());
    sql("UPDATE steps SET loss = 1.0 WHERE step = 2");
    EXPECT_THAT(
        std::string(reader()->verify(id).message()),
        HasSubstr("table steps, step 2, row 2: column loss is \"1.0\", the events say \"4.5\""));
    sql("UPDATE steps SET loss = 4.5 WHERE step = 2; DELETE FROM events WHERE seq = 2");
    EXPECT_THAT(std::string(reader()->verify(id).message()), HasSubstr("event 2 is missing"));
}

}  // namespace
}  // namespace bulkhead::history
