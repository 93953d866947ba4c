// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/state_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <numeric>
#include <random>
#include <thread>

#include "backend/common/clock.h"
#include "backend/runtime/replica/state_server.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

using ::testing::HasSubstr;

const Secret kKey = Secret::ofText("fetch");
constexpr uint64_t kStep = 5;

std::shared_ptr<StateSnapshot> makeSnapshot(size_t bytes) {
    auto snapshot = std::make_shared<StateSnapshot>();
    std::mt19937_64 random(3);
    snapshot->bytes.resize(bytes);
    for (std::byte& b : snapshot->bytes) b = static_cast<std::byte>(random());
    snapshot->lineage = 1;
    snapshot->step = kStep;
    snapshot->layout = 2;
    snapshot->expertShard = {0, 1, 0, 1};
    snapshot->last.step = kStep;
    snapshot->hash = bulkhead_state_hash(snapshot->bytes.data(), snapshot->bytes.size());
    return snapshot;
}

/// A source in this process.
struct Source {
    explicit Source(std::shared_ptr<StateSnapshot> snapshot = nullptr) {
        store.allow(kKey);
        if (snapshot) store.putSnapshot(snapshot);
        server = *StateServer::start("127.0.0.1", 0, &store, stateSockets());
    }
    StateStore store;
    std::unique_ptr<StateServer> server;
};

/// Accepts one connection after another and answers every piece with bytes that do not match.
class LyingSource {
  public:
    explicit LyingSource(const StateSnapshot& snapshot)
        : snapshot_(snapshot),
          listener_(*stateSockets().listen("127.0.0.1", [](std::string_view) { return kKey; })),
          thread_([this] { serve(); }) {}
    ~LyingSource() {
        listener_->shutdown();
        thread_.join();
    }
    std::string address() const { return listener_->address(); }
    int lies() const { return lies_; }

  private:
    void serve() {
        while (true) {
            const auto stream = listener_->accept();
            if (!stream.ok()) return;
            answerAll(stream->get());
        }
    }
    void answerAll(StateStream* stream) {
        for (;;) {
            auto request = stream->receiveHeader<StateRequest>();
            if (!request.ok()) return;
            StateAnswer answer;
            answer.step = request->step;
            answer.totalBytes = snapshot_.bytes.size();
            answer.stateHash = snapshot_.hash;
            answer.layout = snapshot_.layout;
            answer.expertShard = snapshot_.expertShard;
            answer.record = snapshot_.last;
            std::vector<std::byte> payload;
            if (request->ask == StateAsk::kPiece) {
                answer.offset = request->offset;
                answer.bytes = request->bytes;
                payload.assign(request->bytes, std::byte{0x5a});
                answer.checksum =
                    XXH3_64bits(snapshot_.bytes.data() + request->offset, request->bytes);
                ++lies_;
            }
            if (!stream->sendHeader(answer).ok()) return;
            if (!payload.empty() && !stream->sendAll(payload.data(), payload.size()).ok()) return;
        }
    }
    const StateSnapshot& snapshot_;
    const std::unique_ptr<StateListener> listener_;
    std::atomic<int> lies_{0};
    std::thread thread_;
};

FetchOptions options() {
    FetchOptions o;
    o.key = kKey;
    o.lineage = 1;
    o.step = kStep;
    o.layout = 2;
    o.pieceBytes = 64 << 10;
    o.timeoutMs = 2000;
    return o;
}

const SystemClock kClock;

TEST(StateFetch, stripesOverAllSources) {
    const auto snapshot = makeSnapshot((1 << 20) + 13);
    Source a(snapshot), b(snapshot), c(snapshot);
    FetchOptions o = options();
    uint64_t seen = 0;
    o.progress = [&](uint64_t done, uint64_t total) {
        EXPECT_GT(done, seen);
        seen = done;
        EXPECT_EQ(total, snapshot->bytes.size());
    };
    StateFetch fetch(o, kClock);
    auto state =
        fetch.run({{0, a.server->address()}, {1, b.server->address()}, {2, c.server->address()}});
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->bytes, snapshot->bytes);
    EXPECT_EQ((*state)->layout, 2u);
    EXPECT_EQ((*state)->expertShard, snapshot->expertShard);
    EXPECT_EQ((*state)->last.step, kStep);
    EXPECT_EQ(seen, snapshot->bytes.size());
    uint64_t sum = 0;
    for (const auto& [replica, bytes] : fetch.bytesBySource()) sum += bytes;
    EXPECT_EQ(sum, snapshot->bytes.size());
}

TEST(StateFetch, aCorruptPieceIsTakenFromAnotherSource) {
    const auto snapshot = makeSnapshot(1 << 20);
    LyingSource liar(*snapshot);
    Source honest(snapshot);
    StateFetch fetch(options(), kClock);
    auto state = fetch.run({{0, liar.address()}, {1, honest.server->address()}});
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->bytes, snapshot->bytes);
}

TEST(StateFetch, onlyLiarsIsAnErrorThatSaysChecksum) {
    const auto snapshot = makeSnapshot(1 << 20);
    LyingSource liar(*snapshot);
    StateFetch fetch(options(), kClock);
    auto state = fetch.run({{0, liar.address()}});
    ASSERT_FALSE(state.ok());
    EXPECT_THAT(std::string(state.status().message()), HasSubstr("checksum"));
    EXPECT_GE(liar.lies(), 3);
}

TEST(StateFetch, survivesASourceThatIsKilledAndGoesOnWithOthersWhereItStopped) {
    const auto snapshot = makeSnapshot(8 << 20);
    int address[2];
    ASSERT_EQ(::pipe(address), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        Source source(snapshot);
        const std::string& text = source.server->address();
        if (::write(address[1], text.data(), text.size()) < 0) ::_exit(1);
        for (;;) ::pause();
    }
    char buffer[64];
    const ssize_t n = ::read(address[0], buffer, sizeof(buffer));
    ASSERT_GT(n, 0);
    FetchOptions o = options();
    o.progress = [&](uint64_t done, uint64_t total) {
        if (done > total / 4) ::kill(child, SIGKILL);
    };
    StateFetch fetch(o, kClock);
    auto broken = fetch.run({{0, std::string(buffer, static_cast<size_t>(n))}});
    ::waitpid(child, nullptr, 0);
    EXPECT_TRUE(absl::IsUnavailable(broken.status())) << broken.status();
    const uint64_t before = fetch.bytesDone();
    EXPECT_GT(before, 0u);
    Source other(snapshot);
    auto state = fetch.run({{1, other.server->address()}});
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->bytes, snapshot->bytes);
    EXPECT_EQ(other.server->bytesServed(), snapshot->bytes.size() - before);
}

TEST(StateFetch, anotherKeyShardOrLineageGetsNothing) {
    Source source(makeSnapshot(1000));
    const auto failure = [&](auto change) {
        FetchOptions o = options();
        change(&o);
        return std::string(
            StateFetch(o, kClock).run({{0, source.server->address()}}).status().message());
    };
    EXPECT_THAT(failure([](FetchOptions* o) { o->key.words[0] ^= 1; }),
                HasSubstr("no secret in common"));
    EXPECT_THAT(failure([](FetchOptions* o) { o->shard = 1; }), HasSubstr("this is shard 0"));
    EXPECT_THAT(failure([](FetchOptions* o) { o->lineage = 2; }), HasSubstr("lineage 2"));
    EXPECT_EQ(source.server->bytesServed(), 0u);
}

TEST(StateFetch, aStateWhoseExpertsLieOtherwiseIsLeftAlone) {
    const auto wanted = makeSnapshot(200 << 10);
    const auto older = std::make_shared<StateSnapshot>(*wanted);
    older->layout = 1;
    Source behind(older), moved(wanted);
    StateFetch fetch(options(), kClock);
    auto state = fetch.run({{0, behind.server->address()}, {1, moved.server->address()}});
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->layout, 2u);
    EXPECT_EQ(behind.server->bytesServed(), 0u);
    const absl::Status none =
        StateFetch(options(), kClock).run({{0, behind.server->address()}}).status();
    EXPECT_TRUE(absl::IsUnavailable(none));
    EXPECT_THAT(std::string(none.message()), HasSubstr("holds layout 1, not 2"));
}

TEST(StateFetch, aSnapshotThatEverySourceDroppedIsNotFound) {
    Source source;
    StateFetch fetch(options(), kClock);
    EXPECT_TRUE(absl::IsNotFound(fetch.run({{0, source.server->address()}}).status()));
}

TEST(StateFetch, pullsADeltaThatIsStillToCome) {
    Source source(makeSnapshot(10));
    CommitRecord record;
    record.step = kStep + 1;
    record.lineage = 1;
    const Floats gradient(3000, 0.25f);
    StateFetch fetch(options(), kClock);
    std::thread later([&] { source.store.putDelta(record, gradient); });
    auto delta = fetch.delta(kStep + 1, {{0, source.server->address()}}, 5000);
    later.join();
    ASSERT_TRUE(delta.ok()) << delta.status();
    EXPECT_EQ(delta->record, record);
    EXPECT_EQ(delta->reduced, gradient);
    EXPECT_TRUE(absl::IsNotFound(fetch.delta(kStep, {{0, source.server->address()}}, 0).status()));
}

TEST(StateFetch, aDeltaThatItsSourceLostIsNotFoundAtOnce) {
    Source source(makeSnapshot(10));
    source.store.follow();
    source.store.loseDelta(kStep + 1, {});
    StateFetch fetch(options(), kClock);
    EXPECT_TRUE(
        absl::IsNotFound(fetch.delta(kStep + 1, {{0, source.server->address()}}, 9000).status()));
}

TEST(StateFetch, aLargeStateGoesWhereItIsToGoAndIsTheCallersAlone) {
    const auto snapshot = makeSnapshot((65 << 20) + 123);  // hashed by several threads
    Source source(snapshot);
    std::vector<std::byte> room(snapshot->bytes.size());
    auto inUse = std::make_shared<int>();
    FetchOptions to = options();
    to.connections = 3;
    to.room = [&](uint64_t bytes) { return StateBytes(std::span(room).first(bytes), inUse); };
    StateFetch fetch(to, kClock);
    auto state = fetch.run({{0, source.server->address()}});
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->bytes.data(), room.data());
    EXPECT_EQ((*state)->bytes, snapshot->bytes);
    EXPECT_EQ(inUse.use_count(), 2) << "this and the state's";
    state->reset();
    EXPECT_EQ(inUse.use_count(), 1);
}

TEST(StateFetch, aReplayedDeltasMemoryServesTheNext) {
    Source source(makeSnapshot(10));
    CommitRecord record;
    record.step = kStep + 1;
    record.lineage = 1;
    const Floats gradient(3000, 0.25f);
    source.store.putDelta(record, gradient);
    StateFetch fetch(options(), kClock);
    auto first = fetch.delta(record.step, {{0, source.server->address()}}, 100);
    ASSERT_TRUE(first.ok()) << first.status();
    const float* at = first->reduced.data();
    fetch.recycle(std::move(first->reduced));
    const auto next = fetch.delta(record.step, {{0, source.server->address()}}, 100);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->reduced.data(), at);
    EXPECT_EQ(next->reduced, gradient);
}

TEST(StateFetch, severalConnectionsToASourceBringAStateAndADeltaWhole) {
    const auto snapshot = makeSnapshot((5 << 20) + 123);
    Source one(snapshot), two(snapshot);
    CommitRecord record;
    record.step = kStep + 1;
    record.lineage = 1;
    Floats gradient((11 << 20) / sizeof(float) + 7);
    std::iota(gradient.begin(), gradient.end(), 0.0f);
    for (Source* source : {&one, &two}) source->store.putDelta(record, gradient);
    FetchOptions several = options();
    several.connections = 5;
    StateFetch fetch(several, kClock);
    const std::vector<FetchSource> sources = {{0, one.server->address()},
                                              {1, two.server->address()}};
    const auto state = fetch.run(sources);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->bytes, snapshot->bytes);
    const auto parts = fetch.bytesBySource();
    ASSERT_EQ(parts.size(), 2u) << "a source is named once";
    EXPECT_EQ(parts[0].second + parts[1].second, snapshot->bytes.size());
    for (int turn = 0; turn < 2; ++turn) {
        const auto got = fetch.delta(kStep + 1, sources, 100);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_EQ(got->reduced, gradient);
    }
    two.server->setCut(true);
    const auto rest = fetch.delta(kStep + 1, sources, 100);
    ASSERT_TRUE(rest.ok()) << rest.status();
    EXPECT_EQ(rest->reduced, gradient) << "all of it from the other";
}

/// The source's delta of a step is another for whoever asks for its rest.
TEST(StateFetch, partsOfTwoDeltasAreNotOne) {
    for (const bool shorter : {true, false}) {
        CommitRecord record;
        record.step = kStep + 1;
        record.lineage = 1;
        const size_t floats = (9 << 20) / sizeof(float);
        const auto listener =
            *stateSockets().listen("127.0.0.1", [](std::string_view) { return kKey; });
        std::vector<std::thread> connections;
        std::thread acceptor([&] {
            for (auto next = listener->accept(); next.ok(); next = listener->accept())
                connections.emplace_back([&, stream = *std::move(next)] {
                    for (auto asked = stream->receiveHeader<StateRequest>(); asked.ok();
                         asked = stream->receiveHeader<StateRequest>()) {
                        const bool rest = asked->offset > 0;
                        StateAnswer answer;
                        answer.step = asked->step;
                        answer.record = record;
                        if (rest && !shorter) answer.record->updates += 1;
                        answer.totalBytes = (rest && shorter ? floats / 2 : floats) * sizeof(float);
                        answer.offset = std::min(asked->offset, answer.totalBytes);
                        answer.bytes = std::min(asked->bytes, answer.totalBytes - answer.offset);
                        const std::vector<char> zeros(answer.bytes);
                        answer.checksum = XXH3_64bits(zeros.data(), zeros.size());
                        if (!stream->sendHeader(answer).ok() ||
                            !stream->sendAll(zeros.data(), zeros.size()).ok())
                            return;
                    }
                });
        });
        {
            FetchOptions several = options();
            several.connections = 3;
            StateFetch fetch(several, kClock);
            const auto delta = fetch.delta(kStep + 1, {{0, listener->address()}}, 100);
            EXPECT_FALSE(delta.ok());
            EXPECT_THAT(delta.status().message(), HasSubstr("delta"));
        }
        listener->shutdown();
        acceptor.join();
        for (std::thread& connection : connections) connection.join();
    }
}

TEST(StateFetch, aDeltaIsPulledFromThoseWhoAreNamedNow) {
    Source before(makeSnapshot(10)), now(makeSnapshot(10));
    CommitRecord record;
    record.lineage = 1;
    record.step = kStep + 1;
    before.store.putDelta(record, Floats{1});
    record.step = kStep + 2;
    now.store.putDelta(record, Floats{2});
    StateFetch fetch(options(), kClock);
    ASSERT_TRUE(fetch.delta(kStep + 1, {{0, before.server->address()}}, 0).ok());
    const auto delta = fetch.delta(kStep + 2, {{1, now.server->address()}}, 0);
    ASSERT_TRUE(delta.ok()) << delta.status();
    EXPECT_EQ(delta->reduced, Floats{2});
    // One of two has it.
    const std::vector<FetchSource> both = {{0, before.server->address()},
                                           {1, now.server->address()}};
    EXPECT_TRUE(fetch.delta(kStep + 1, both, 0).ok());
    EXPECT_TRUE(fetch.delta(kStep + 2, both, 0).ok());
}

TEST(StateFetch, cancelEndsAWait) {
    Source source(makeSnapshot(10));
    StateFetch fetch(options(), kClock);
    std::thread later([&] { fetch.cancel(); });
    EXPECT_TRUE(
        absl::IsAborted(fetch.delta(kStep + 1, {{0, source.server->address()}}, 9000).status()));
    later.join();
}

TEST(StateFetch, aCapSpreadsItsRequests) {
    const auto snapshot = makeSnapshot(300 << 10);
    Source source(snapshot);
    class ManualClock final : public Clock {
      public:
        MonoNs now() const override { return now_ += kSecond; }
        int64_t unixNs() const override { return 0; }
        mutable MonoNs now_ = 0;
    } clock;
    FetchOptions o = options();
    o.bytesPerSecond = 64 << 10;
    StateFetch fetch(o, clock);
    ASSERT_TRUE(fetch.run({{0, source.server->address()}}).ok());
    // Five pieces of a second each: the clock was asked until the fifth was due.
    EXPECT_GE(clock.now_, 4 * kSecond);
}

TEST(StateServer, servesOnAfterSilentConnectionsHadAllDescriptors) {
    Source source(makeSnapshot(1000));
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit few = before;
    few.rlim_cur = 64;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<std::unique_ptr<StateStream>> silent;
    for (;;) {
        auto stream =
            stateSockets().connect(source.server->address(), joinerCredential(kKey), 2000);
        if (!stream.ok()) break;  // no descriptor is left, for accepting neither
        silent.push_back(*std::move(stream));
    }
    EXPECT_GT(silent.size(), 10u);
    EXPECT_LT(silent.size(), 64u);
    silent.clear();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    StateFetch fetch(options(), kClock);
    EXPECT_TRUE(fetch.run({{0, source.server->address()}}).ok());
}

TEST(StateServer, moreSilentConnectionsThanItHasRoomForKeepNoJoinerOut) {
    Source source(makeSnapshot(1000));
    std::vector<std::unique_ptr<StateStream>> silent;
    for (int i = 0; i < 300; ++i) {
        auto stream =
            stateSockets().connect(source.server->address(), joinerCredential(kKey), 2000);
        ASSERT_TRUE(stream.ok()) << stream.status();
        silent.push_back(*std::move(stream));
    }
    StateFetch fetch(options(), kClock);
    EXPECT_TRUE(fetch.run({{0, source.server->address()}}).ok());
    char byte = 0;
    EXPECT_FALSE(silent.front()->receiveAll(&byte, 1).ok()) << "the first gave way";
}

TEST(StateServer, aCutDropsConnectionsUntilItEnds) {
    Source source(makeSnapshot(1000));
    source.server->setCut(true);
    StateFetch cut(options(), kClock);
    EXPECT_FALSE(cut.run({{0, source.server->address()}}).ok());
    source.server->setCut(false);
    EXPECT_TRUE(cut.run({{0, source.server->address()}}).ok());
}

}  // namespace
}  // namespace bulkhead::runtime
