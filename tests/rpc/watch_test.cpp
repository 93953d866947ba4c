// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <grpcpp/create_channel.h>
#include <deque>

#include "backend/common/codec.h"
#include "backend/common/threads.h"
#include "backend/proto/convert.h"
#include "backend/proto/state_form.h"
#include "backend/service/feed.h"
#include "bulkhead/v1/service.grpc.pb.h"
#include "tests/rpc/rpc_fixture.h"

namespace bulkhead::testing {
namespace {

TEST(FeedTest, AReaderInTimeGetsEveryEventOnce) {
    service::Feed feed;
    feed.reset({});
    service::Feed::Cursor cursor;
    v1::WatchUpdate update;
    ASSERT_TRUE(feed.next(cursor, update));
    EXPECT_TRUE(update.has_snapshot());
    for (uint64_t seq = 1; seq <= 10; ++seq) feed.push({seq, 0, {}, note("x")});
    update.Clear();
    ASSERT_TRUE(feed.next(cursor, update));
    ASSERT_EQ(update.events().events_size(), 10);
    EXPECT_EQ(update.events().events(9).seq(), 10u);
    EXPECT_FALSE(feed.next(cursor, update));
}

TEST(FeedTest, AReaderThatFellBehindGetsTheStateOfNowInsteadOfAQueue) {
    service::Feed feed({.events = 16, .bytes = 1 << 20});
    feed.reset({});
    service::Feed::Cursor cursor;
    v1::WatchUpdate update;
    ASSERT_TRUE(feed.next(cursor, update));
    for (uint64_t seq = 1; seq <= 1000; ++seq) feed.push({seq, 0, {}, note(std::to_string(seq))});
    update.Clear();
    ASSERT_TRUE(feed.next(cursor, update));
    ASSERT_TRUE(update.has_snapshot());
    EXPECT_TRUE(update.snapshot().conflated());
    EXPECT_EQ(update.snapshot().seq(), 1000u);
    const auto state = proto::decodeState(update.snapshot().state(), false);
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(state->explanation, "1000");
    EXPECT_FALSE(feed.next(cursor, update));
}

TEST(FeedTest, ReadersWhoComeSoonAfterEachOtherShareTheStateThatWasMade) {
    service::Feed feed;
    feed.reset({});
    auto push = [&feed, seq = uint64_t{0}](int count) mutable {
        for (int i = 0; i < count; ++i) feed.push({++seq, 0, {}, note(std::to_string(seq))});
    };
    const auto firstSeq = [&feed](bool json) {
        service::Feed::Cursor cursor;
        cursor.json = json;
        v1::WatchUpdate update;
        EXPECT_TRUE(feed.next(cursor, update));
        const uint64_t seq = update.snapshot().seq(), newest = update.snapshot().newest();
        // The reader reaches the current state, whatever the snapshot was made of.
        uint64_t last = seq;
        for (update.Clear(); feed.next(cursor, update); update.Clear())
            for (const v1::Event& event : update.events().events()) EXPECT_EQ(event.seq(), ++last);
        EXPECT_EQ(last, cursor.seq);
        EXPECT_EQ(last, newest);
        return std::pair(seq, last);
    };
    push(5);
    for (const bool json : {false, true}) EXPECT_EQ(firstSeq(json), std::pair(5ul, 5ul));
    push(10);
    for (const bool json : {false, true}) EXPECT_EQ(firstSeq(json), std::pair(5ul, 15ul));
    push(300);
    for (const bool json : {false, true}) EXPECT_EQ(firstSeq(json), std::pair(315ul, 315ul));
    model::RunState other;
    other.seq = 7;
    feed.reset(other);
    for (const bool json : {false, true}) EXPECT_EQ(firstSeq(json), std::pair(7ul, 7ul));
}

TEST(FeedTest, WhatIsKeptIsBoundedInBytesToo) {
    service::Feed feed({.events = 1000000, .bytes = 10000});
    feed.reset({});
    service::Feed::Cursor cursor;
    v1::WatchUpdate update;
    ASSERT_TRUE(feed.next(cursor, update));
    for (uint64_t seq = 1; seq <= 100; ++seq) feed.push({seq, 0, {}, note(std::string(1000, 'x'))});
    update.Clear();
    ASSERT_TRUE(feed.next(cursor, update));
    EXPECT_TRUE(update.has_snapshot());
}

TEST(FeedTest, AResetReachesEveryReader) {
    service::Feed feed;
    feed.reset({});
    service::Feed::Cursor cursor;
    v1::WatchUpdate update;
    ASSERT_TRUE(feed.next(cursor, update));
    model::RunState earlier;
    earlier.seq = 3;
    feed.reset(earlier);
    update.Clear();
    ASSERT_TRUE(feed.next(cursor, update));
    ASSERT_TRUE(update.has_snapshot());
    EXPECT_EQ(update.snapshot().seq(), 3u);
    EXPECT_FALSE(update.snapshot().conflated());
}

TEST(FeedTest, AStateAsJsonReadsBackEqual) {
    service::Feed feed;
    feed.reset({});
    feed.push({1, 5, {}, note("why")});
    service::Feed::Cursor cursor;
    cursor.json = true;
    v1::WatchUpdate update;
    ASSERT_TRUE(feed.next(cursor, update));
    ASSERT_EQ(update.snapshot().form(), v1::STATE_FORM_JSON);
    EXPECT_THAT(update.snapshot().state(), ::testing::HasSubstr("\"explanation\":\"why\""));
    const auto state = proto::decodeState(update.snapshot().state(), true);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->seq, 1u);
}

TEST(FeedTest, EventsTooLargeForOneMessageComeInSeveral) {
    service::Feed feed({.events = 1000, .bytes = 64 << 20});
    feed.reset({});
    service::Feed::Cursor cursor;
    v1::WatchUpdate update;
    ASSERT_TRUE(feed.next(cursor, update));
    for (uint64_t seq = 1; seq <= 200; ++seq)
        feed.push({seq, 0, {}, note(std::string(100'000, 'x'))});
    uint64_t seen = 0;
    for (update.Clear(); feed.next(cursor, update); update.Clear()) {
        EXPECT_LE(update.ByteSizeLong(), 2 * service::Feed::kMostBytes);
        for (const v1::Event& event : update.events().events()) EXPECT_EQ(event.seq(), ++seen);
    }
    EXPECT_EQ(seen, 200u);
}

class WatchTest : public RpcTest {
  protected:
    /// Its bytes with full rings turned to their beginning, as reading does.
    static std::string normal(const model::RunState& state) {
        return encode(*proto::decodeState(proto::encodeState(state, false), false));
    }
    /// A job of 64 replicas of 8 shards with 128 experts a layer and thousands of incidents.
    void growLarge() {
        model::RunStarted started;
        started.spec.replicas = 64;
        started.spec.shards = 8;
        backend_.emit("demo", started);
        model::ExpertLoads loads{
            .step = 1, .moeLayers = 24, .domains = 4, .experts = 128, .counts = {}};
        loads.counts.assign(size_t{loads.moeLayers} * loads.domains * loads.experts, 1'000'000);
        backend_.emit("demo", loads);
        for (uint64_t i = 1; i <= 3000; ++i) {
            model::IncidentOpened opened;
            opened.incident = i;
            opened.replica = static_cast<int32_t>(i % 64);
            opened.title = std::string(1000, 't');
            backend_.emit("demo", opened);
            model::IncidentClosed closed;
            closed.incident = i;
            closed.outcome = std::string(1000, 'o');
            backend_.emit("demo", closed);
        }
    }
};

TEST_F(WatchTest, FirstTheSnapshotThenWhatFollowsWithoutAGap) {
    serve(unixOptions());
    backend_.emit("demo", note("before"));
    const auto client = connect();
    WatchLog log;
    const auto watch = client->watch({.job = "demo", .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; }));
    EXPECT_EQ(log.state->explanation, "before");
    for (int i = 0; i < 100; ++i) backend_.emit("demo", note("event " + std::to_string(i)));
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.state->seq == 101; }));
    EXPECT_FALSE(log.gap);
    EXPECT_EQ(encode(*log.state), encode(backend_.state("demo")));
}

/// The daemon makes the state once and sends both of them that one.
TEST_F(WatchTest, WhoeverComesLaterBeginsWithTheStateOfNow) {
    serve(unixOptions());
    backend_.emit("demo", note("before"));
    const auto client = connect();
    WatchLog first, second;
    const auto watch = client->watch({.job = "demo", .replay = ""}, first.handlers());
    ASSERT_TRUE(first.waitFor([](auto& l) { return l.snapshots == 1; }));
    for (int i = 0; i < 20; ++i) backend_.emit("demo", note("event " + std::to_string(i)));
    ASSERT_TRUE(first.waitFor([](auto& l) { return l.state->seq == 21; }));
    uint64_t begins = 0;
    auto handlers = second.handlers();
    handlers.onSnapshot = [&begins, record = handlers.onSnapshot](client::StatePtr state) {
        begins = state->seq;
        record(std::move(state));
    };
    const auto later = client->watch({.job = "demo", .replay = ""}, std::move(handlers));
    ASSERT_TRUE(second.waitFor([](auto& l) { return l.snapshots == 1; }));
    EXPECT_EQ(begins, 21u);
    backend_.emit("demo", note("after"));
    ASSERT_TRUE(second.waitFor([](auto& l) { return l.state->seq == 22; }));
    EXPECT_EQ(second.events, 1u);
    EXPECT_EQ(encode(*second.state), encode(backend_.state("demo")));
}

TEST_F(WatchTest, AStateBeyondGrpcsLimitIsFollowedByEverybody) {
    serve(unixOptions());
    growLarge();
    const model::RunState large = backend_.state("demo");
    ASSERT_GT(encode(large).size(), 4u << 20);
    // Somebody else's program, with gRPC's own limit of 4 MiB.
    auto stub = v1::Watch::NewStub(
        grpc::CreateChannel(server_->addresses().front(), grpc::InsecureChannelCredentials()));
    for (const v1::StateForm form : {v1::STATE_FORM_CODEC, v1::STATE_FORM_JSON}) {
        grpc::ClientContext context;
        v1::WatchRequest request;
        request.set_job("demo");
        request.set_form(form);
        const auto reader = stub->Watch(&context, request);
        std::string bytes;
        v1::WatchUpdate update;
        do {
            ASSERT_TRUE(reader->Read(&update)) << reader->Finish().error_message();
            ASSERT_TRUE(update.has_snapshot());
            bytes += update.snapshot().state();
        } while (update.snapshot().more());
        const auto state = proto::decodeState(bytes, form == v1::STATE_FORM_JSON);
        ASSERT_TRUE(state.ok()) << state.status();
        // Not EXPECT_EQ: it would print megabytes.
        EXPECT_TRUE(normal(*state) == normal(large)) << form;
        context.TryCancel();
    }
    const auto client = connect();
    WatchLog log;
    const auto watch = client->watch({.job = "demo", .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; }));
    backend_.emit("demo", note("after"));
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.state->explanation == "after"; }));
    EXPECT_TRUE(normal(*log.state) == normal(backend_.state("demo")));
}

TEST_F(WatchTest, ASlowReaderIsConflatedAndEndsWithTheSameState) {
    auto options = unixOptions();
    options.feed.events = 64;
    serve(options);
    const auto client = connect();
    WatchLog log;
    std::promise<void> release;
    const auto released = release.get_future().share();
    auto handlers = log.handlers();
    const auto onSnapshot = handlers.onSnapshot;
    handlers.onSnapshot = [=](client::StatePtr state) {
        onSnapshot(state);
        released.wait();
    };
    const auto watch = client->watch({.job = "demo", .replay = ""}, handlers);
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; }));
    // Far more than the transport's own windows take in.
    constexpr uint64_t kEvents = 20000;
    for (uint64_t i = 0; i < kEvents; ++i) backend_.emit("demo", note(std::string(500, 'x')));
    release.set_value();
    ASSERT_TRUE(log.waitFor([&](auto& l) { return l.state->seq == kEvents; }));
    EXPECT_GT(log.snapshots, 1);
    EXPECT_LT(log.events, kEvents);
    EXPECT_EQ(encode(*log.state), encode(backend_.state("demo")));
}

TEST_F(WatchTest, AnUnknownJobEndsTheWatchForGood) {
    serve(unixOptions());
    const auto client = connect();
    WatchLog log;
    const auto watch = client->watch({.job = "nope", .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return !l.failures.empty(); }));
    EXPECT_EQ(log.failures[0].code, client::FailureCode::kNotFound);
    EXPECT_FALSE(log.failures[0].retryable);
}

TEST_F(WatchTest, TheLastReaderLeavesTheBackend) {
    serve(unixOptions());
    const auto client = connect();
    WatchLog log;
    auto watch = client->watch({.job = "demo", .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; }));
    EXPECT_EQ(backend_.subscribers("demo"), 1u);
    watch.reset();
    server_.reset();
    EXPECT_EQ(backend_.subscribers("demo"), 0u);
}

TEST_F(WatchTest, AWatchMayEndItselfFromItsOwnCallback) {
    serve(unixOptions());
    const auto client = connect();
    std::unique_ptr<client::Watch> watch;
    Mutex mutex;
    std::promise<void> ended;
    client::WatchHandlers handlers;
    handlers.onSnapshot = [&](const client::StatePtr&) {
        const MutexLock lock(mutex);
        watch.reset();
        ended.set_value();
    };
    {
        const MutexLock lock(mutex);
        watch = client->watch({.job = "demo", .replay = ""}, handlers);
    }
    EXPECT_EQ(ended.get_future().wait_for(kForever), std::future_status::ready);
}

TEST_F(WatchTest, OnePrincipalHasSoManyWatchesAndNoMore) {
    serve(unixOptions());
    constexpr int kEach = 32;
    const auto client = connect();
    std::deque<WatchLog> logs(kEach);
    std::vector<std::unique_ptr<client::Watch>> watches;
    for (WatchLog& log : logs) {
        watches.push_back(client->watch({.job = "demo", .replay = ""}, log.handlers()));
        ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; })) << watches.size();
    }
    WatchLog log;
    const auto one = client->watch({.job = "demo", .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return !l.failures.empty(); }));
    EXPECT_THAT(log.failures[0].cause, ::testing::HasSubstr(" has 32 watches open"));
    watches.clear();
    EXPECT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; })) << "once others have ended";
}

TEST_F(WatchTest, AfterTheDaemonCameBackTheWatchGoesOnWithAFreshSnapshot) {
    serve(unixOptions());
    const auto client = connect();
    WatchLog log;
    const auto watch = client->watch({.job = "demo", .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; }));
    server_.reset();
    ASSERT_TRUE(log.waitFor([](auto& l) { return !l.failures.empty(); }));
    EXPECT_TRUE(log.failures[0].retryable);
    EXPECT_LE(log.nextAttempt, std::chrono::steady_clock::now() + std::chrono::seconds(1));
    // Some attempts must fail before it is back.
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.failures.size() >= 3; }));
    EXPECT_EQ(log.failures[2].code, client::FailureCode::kUnreachable);
    EXPECT_THAT(log.failures[2].cause, ::testing::HasSubstr("Nobody answers at unix:"));
    const auto next = log.nextAttempt - std::chrono::steady_clock::now();
    EXPECT_LE(next, std::chrono::milliseconds(500));
    backend_.emit("demo", note("while away"));
    serve(unixOptions());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 2; }));
    EXPECT_EQ(log.state->explanation, "while away");
}

}  // namespace
}  // namespace bulkhead::testing
