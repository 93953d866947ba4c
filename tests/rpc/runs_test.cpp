// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>

#include <sstream>

#include "backend/common/codec.h"
#include "backend/service/run_library.h"
#include "bulkhead/v1/service.grpc.pb.h"
#include "tests/rpc/rpc_fixture.h"
#include "tests/rpc/run_file.h"

namespace bulkhead::testing {
namespace {

using ::testing::HasSubstr;

class RunsTest : public RpcTest {
  protected:
    static constexpr uint64_t kSteps = 50;

    RunsTest() : events_(madeUpRun(kSteps)) {
        writeRun(dir_ + "/runs.db", events_, clock_);
        service::ServerOptions options = unixOptions();
        options.backend = nullptr;
        options.history = dir_ + "/runs.db";
        serve(options);
        client_ = connect();
    }
    ~RunsTest() override { client_.reset(); }

    struct Unread {
        grpc::ClientContext context;
        std::unique_ptr<grpc::ClientReader<v1::ExportChunk>> reader;
    };
    /// Exports of a run that is too large to wait in the network. Nobody reads them.
    std::vector<Unread> exportsThatNobodyReads(int count, service::ServerOptions options) {
        writeRun(dir_ + "/large.db", madeUpRun(3000), clock_);
        options.socket = dir_ + "/large.sock";
        options.history = dir_ + "/large.db";
        serve(options);
        grpc::ChannelArguments small;  // unread data waits at the server
        small.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
        const auto stub = v1::Runs::NewStub(grpc::CreateCustomChannel(
            server_->addresses().front(), grpc::InsecureChannelCredentials(), small));
        v1::ExportRequest whole;
        whole.set_run("demo");
        whole.set_what(v1::EXPORT_WHAT_EVENTS);
        whole.set_format(v1::EXPORT_FORMAT_JSON_LINES);
        std::vector<Unread> unread(count);
        for (Unread& one : unread) one.reader = stub->Export(&one.context, whole);
        return unread;
    }
    /// Until the caller has one fewer open than it may.
    void awaitExport(client::Client& client) {
        const auto until = std::chrono::steady_clock::now() + kForever;
        while (!exportStep(client).ok()) ASSERT_LT(std::chrono::steady_clock::now(), until);
    }
    client::Result<client::Done> exportStep(client::Client& client) {
        client::ExportRequest part;
        part.run = "demo";
        part.format = client::ExportFormat::kJsonLines;
        part.fromStep = part.toStep = 7;
        return await<client::Done>([&](auto reply) {
            client.exportRun(
                part, [](const std::string&) {}, reply);
        });
    }

    model::RunState foldTo(uint64_t seq) const {
        model::RunState state;
        for (const model::Event& event : events_)
            if (event.seq <= seq) model::apply(state, event);
        return state;
    }
    client::Result<model::ReplayPosition> control(const std::string& replay,
                                                  model::ReplayControl order) {
        return await<model::ReplayPosition>(
            [&](auto reply) { client_->controlReplay(replay, order, reply); });
    }
    std::string openReplay() {
        const auto id =
            await<std::string>([&](auto reply) { client_->openReplay("latest", reply); });
        EXPECT_TRUE(id.ok()) << id.failure().cause;
        return id.value();
    }

    const std::vector<model::Event> events_;
    std::unique_ptr<client::Client> client_;
};

TEST_F(RunsTest, ListsWhatTheFileHolds) {
    const auto runs =
        await<std::vector<model::RunInfo>>([&](auto reply) { client_->listRuns("", reply); });
    ASSERT_TRUE(runs.ok()) << runs.failure().cause;
    ASSERT_EQ(runs.value().size(), 1u);
    EXPECT_EQ(runs.value()[0].id, "demo");
    EXPECT_EQ(runs.value()[0].steps, kSteps);
    EXPECT_EQ(runs.value()[0].lastSeq, events_.size());
}

TEST_F(RunsTest, EventsComeInPagesAndFiltered) {
    model::EventQuery query;
    query.run = "demo";
    query.types = {"step_committed"};
    query.limit = 20;
    std::vector<uint64_t> steps;
    int pages = 0;
    do {
        const auto page =
            await<model::EventPage>([&](auto reply) { client_->readEvents(query, reply); });
        ASSERT_TRUE(page.ok()) << page.failure().cause;
        for (const model::Event& event : page.value().events)
            steps.push_back(std::get<model::StepCommitted>(event.body).record.step);
        query.fromSeq = page.value().nextSeq;
        ++pages;
    } while (query.fromSeq != 0);
    EXPECT_EQ(pages, 3);
    ASSERT_EQ(steps.size(), kSteps);
    EXPECT_EQ(steps.back(), kSteps);
}

TEST_F(RunsTest, TheStateAfterAnyEventIsTheFoldUpToIt) {
    for (const uint64_t seq : {uint64_t{1}, uint64_t{17}, uint64_t{0}}) {
        const auto state =
            await<client::StatePtr>([&](auto reply) { client_->getState("demo", seq, reply); });
        ASSERT_TRUE(state.ok()) << state.failure().cause;
        EXPECT_EQ(encode(*state.value()), encode(foldTo(seq == 0 ? UINT64_MAX : seq)));
    }
}

TEST_F(RunsTest, AnEventTypeThatIsNoneIsSaidAndNotJustEmpty) {
    model::EventQuery query;
    query.run = "demo";
    query.types = {"incident_open"};
    const auto page =
        await<model::EventPage>([&](auto reply) { client_->readEvents(query, reply); });
    ASSERT_FALSE(page.ok());
    EXPECT_EQ(page.failure().code, client::FailureCode::kInvalid);
    EXPECT_THAT(page.failure().remedy, HasSubstr("incident_opened"));
}

TEST_F(RunsTest, AnExportComesWhole) {
    std::string text;
    client::ExportRequest request;
    request.run = "demo";
    const auto done = await<client::Done>([&](auto reply) {
        client_->exportRun(
            request, [&](std::string piece) { text += piece; }, reply);
    });
    ASSERT_TRUE(done.ok()) << done.failure().cause;
    std::istringstream lines(text);
    size_t count = 0;
    for (std::string line; std::getline(lines, line);) ++count;
    EXPECT_EQ(count, kSteps + 1);
}

TEST_F(RunsTest, ExportsThatNobodyReadsEndAndOthersTakeTheirPlace) {
    service::ServerOptions options = unixOptions();
    options.exportPatience = std::chrono::milliseconds(300);
    std::vector<Unread> unread = exportsThatNobodyReads(4, options);
    v1::ExportChunk chunk;
    for (Unread& one : unread) ASSERT_TRUE(one.reader->Read(&chunk));  // it has its place
    const auto client = connect();
    awaitExport(*client);
    int ended = 0;
    for (Unread& one : unread) {
        while (one.reader->Read(&chunk)) {
        }
        const grpc::Status why = one.reader->Finish();
        if (why.ok()) continue;  // its patience was not over when it was read
        ++ended;
        EXPECT_EQ(why.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
        EXPECT_THAT(why.error_message(), HasSubstr("took nothing for 300 ms"));
    }
    EXPECT_GE(ended, 1);
}

TEST_F(RunsTest, OneCallerCannotTakeAllExports) {
    service::ServerOptions options = unixOptions();
    options.listen = {"127.0.0.1:0"};
    options.tokenFile = tokenFile();
    std::vector<Unread> unread = exportsThatNobodyReads(20, options);
    size_t refused = 0;
    for (Unread& one : unread) {
        v1::ExportChunk chunk;
        if (one.reader->Read(&chunk)) continue;
        const grpc::Status why = one.reader->Finish();
        EXPECT_EQ(why.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
        EXPECT_THAT(why.error_message(), HasSubstr("has 4 exports open"));
        ++refused;
    }
    EXPECT_EQ(refused, unread.size() - 4);

    client::Options another;
    another.target = server_->addresses().back();
    another.tokenFile = tokenFile();
    another.deadline = kForever;
    const auto other = std::move(client::Client::open(another)).value();
    const auto done = exportStep(*other);
    EXPECT_TRUE(done.ok()) << done.failure().cause;

    const auto same = connect();
    const auto denied = exportStep(*same);
    ASSERT_FALSE(denied.ok());
    EXPECT_THAT(denied.failure().remedy, HasSubstr("End one of them"));
    for (Unread& one : unread) one.context.TryCancel();
    awaitExport(*same);
}

TEST_F(RunsTest, ARunThatIsNotThereIsSaid) {
    const auto id = await<std::string>([&](auto reply) { client_->openReplay("nope", reply); });
    ASSERT_FALSE(id.ok());
    EXPECT_EQ(id.failure().code, client::FailureCode::kNotFound);
    EXPECT_THAT(id.failure().cause, HasSubstr("nope"));
}

TEST_F(RunsTest, AReplayStandsAtTheBeginningUntilToldOtherwise) {
    const std::string replay = openReplay();
    WatchLog log;
    const auto watch = client_->watch({.job = "", .replay = replay}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.position.has_value(); }));
    EXPECT_TRUE(log.position->paused);
    EXPECT_EQ(log.position->timeNs, kRunBeginNs);
    EXPECT_EQ(log.position->endStep, kSteps);
    EXPECT_EQ(log.state->seq, 1u);
}

TEST_F(RunsTest, SeekingShowsTheStateOfThatStep) {
    const std::string replay = openReplay();
    WatchLog log;
    const auto watch = client_->watch({.job = "", .replay = replay}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; }));
    model::ReplayControl forward;
    forward.seekStep = 30;
    const auto at = control(replay, forward);
    ASSERT_TRUE(at.ok()) << at.failure().cause;
    EXPECT_EQ(at.value().step, 30u);
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.state->seq == 31; }));
    EXPECT_EQ(encode(*log.state), encode(foldTo(31)));
    model::ReplayControl back;
    back.seekTimeNs = kRunBeginNs + 10 * kStepNs;
    ASSERT_TRUE(control(replay, back).ok());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.state->seq == 11; }));
    EXPECT_EQ(encode(*log.state), encode(foldTo(11)));
    model::ReplayControl beyond;
    beyond.seekStep = 1000;
    EXPECT_EQ(control(replay, beyond).failure().code, client::FailureCode::kNotFound);
}

TEST_F(RunsTest, PlayedToItsEndAReplayHasShownEveryEvent) {
    const std::string replay = openReplay();
    WatchLog log;
    const auto watch = client_->watch({.job = "", .replay = replay}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; }));
    model::ReplayControl play;
    play.speed = 1000;
    play.paused = false;
    ASSERT_TRUE(control(replay, play).ok());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.position && l.position->atEnd; }));
    EXPECT_TRUE(log.position->paused);
    EXPECT_FALSE(log.gap);
    EXPECT_EQ(encode(*log.state), encode(foldTo(UINT64_MAX)));
}

TEST_F(RunsTest, AClosedReplayEndsItsWatch) {
    const std::string replay = openReplay();
    WatchLog log;
    const auto watch = client_->watch({.job = "", .replay = replay}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; }));
    ASSERT_TRUE(await<client::Done>([&](auto reply) { client_->closeReplay(replay, reply); }).ok());
    ASSERT_TRUE(log.waitFor([](auto& l) { return !l.failures.empty(); }));
    EXPECT_FALSE(log.failures[0].retryable);
}

TEST_F(RunsTest, AReplayIsItsCallersAloneAndOneMayHaveEight) {
    service::RunLibrary library(dir_ + "/runs.db", clock_);
    const auto annas = library.openReplay("demo", "anna");
    ASSERT_TRUE(annas.ok()) << annas.status();
    EXPECT_TRUE(absl::IsNotFound(library.controlReplay(*annas, "victor", {}).status()));
    EXPECT_TRUE(absl::IsNotFound(library.replayFeed(*annas, "victor").status()));
    EXPECT_TRUE(absl::IsNotFound(library.closeReplay(*annas, "victor")));
    EXPECT_TRUE(library.replayFeed(*annas, "anna").ok());
    for (size_t i = 1; i < service::RunLibrary::kMostReplaysOfOne; ++i)
        EXPECT_TRUE(library.openReplay("demo", "anna").ok());
    const auto ninth = library.openReplay("demo", "anna");
    EXPECT_TRUE(absl::IsResourceExhausted(ninth.status())) << ninth.status();
    EXPECT_THAT(std::string(ninth.status().message()), HasSubstr("anna has 8 replays open"));
    EXPECT_TRUE(library.openReplay("demo", "victor").ok());
    ASSERT_TRUE(library.closeReplay(*annas, "anna").ok());
    EXPECT_TRUE(library.openReplay("demo", "anna").ok());
}

TEST_F(RunsTest, ADaemonOfARunFileHasNoJobsAndSaysSo) {
    const auto info = await<model::ServerInfo>([&](auto reply) { client_->handshake(reply); });
    ASSERT_TRUE(info.ok());
    EXPECT_TRUE(info.value().readOnly);
    const auto started =
        await<model::JobInfo>([&](auto reply) { client_->startJob(model::JobSpec(), {}, reply); });
    ASSERT_FALSE(started.ok());
    EXPECT_EQ(started.failure().code, client::FailureCode::kRefused);
    EXPECT_THAT(started.failure().remedy, HasSubstr("without --run"));
}

}  // namespace
}  // namespace bulkhead::testing
