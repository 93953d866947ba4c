// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "backend/common/threads.h"
#include "tests/rpc/rpc_fixture.h"

namespace bulkhead::testing {
namespace {

using client::FailureCode;
using ::testing::HasSubstr;

class JobsTest : public RpcTest {
  protected:
    client::Result<model::JobInfo> act(client::Client& client, client::Mutation mutation,
                                       model::ActionKind kind = model::ActionKind::kPause) {
        model::Action action;
        action.kind = kind;
        return await<model::JobInfo>(
            [&](auto reply) { client.act("demo", action, mutation, reply); });
    }
};

TEST_F(JobsTest, HandshakeNamesVersionAndBuild) {
    serve(unixOptions());
    const auto client = connect();
    const auto info = await<model::ServerInfo>([&](auto reply) { client->handshake(reply); });
    ASSERT_TRUE(info.ok()) << info.failure().cause;
    EXPECT_EQ(info.value().apiVersion, 1u);
    EXPECT_EQ(info.value().build, "test");
    EXPECT_FALSE(info.value().readOnly);
}

TEST_F(JobsTest, StartsAJobFromASpecAndListsIt) {
    serve(unixOptions());
    const auto client = connect();
    model::JobSpec spec;
    spec.name = "second";
    spec.replicas = 7;
    const auto job = await<model::JobInfo>([&](auto reply) { client->startJob(spec, {}, reply); });
    ASSERT_TRUE(job.ok()) << job.failure().cause;
    EXPECT_EQ(job.value().replicas, 7u);
    const auto jobs =
        await<std::vector<model::JobInfo>>([&](auto reply) { client->listJobs(reply); });
    ASSERT_TRUE(jobs.ok());
    EXPECT_EQ(jobs.value().size(), 2u);
    ASSERT_EQ(backend_.calls().size(), 1u);
    EXPECT_EQ(backend_.calls()[0].by, "tester");
    EXPECT_FALSE(backend_.calls()[0].requestId.empty());
}

TEST_F(JobsTest, ListsTheNodes) {
    serve(unixOptions());
    const auto client = connect();
    const auto nodes =
        await<std::vector<model::NodeInfo>>([&](auto reply) { client->listNodes(reply); });
    ASSERT_TRUE(nodes.ok()) << nodes.failure().cause;
    EXPECT_EQ(nodes.value(), backend_.nodes());
}

TEST_F(JobsTest, ChangesANode) {
    serve(unixOptions());
    const auto client = connect();
    const auto change = [&](const std::string& node, model::NodeChange change, bool off) {
        return await<std::vector<model::NodeInfo>>(
            [&](auto reply) { client->changeNode(node, change, off, {}, std::move(reply)); });
    };
    const auto left = change("west", model::NodeChange::kForget, true);
    ASSERT_TRUE(left.ok()) << left.failure().cause;
    EXPECT_EQ(left.value(), backend_.nodes());
    EXPECT_EQ(backend_.changed, std::pair(std::string("forget"), true));
    EXPECT_EQ(backend_.calls().back().by, "tester");
    ASSERT_TRUE(change("west", model::NodeChange::kUncordon, false).ok());
    EXPECT_EQ(backend_.changed, std::pair(std::string("uncordon"), false));
    const auto none = change("east", model::NodeChange::kCordon, false);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.failure().code, FailureCode::kNotFound);
    EXPECT_EQ(none.failure().title, "Cannot cordon node east");
}

TEST_F(JobsTest, AJobThatIsNotThereIsNamedWithARemedy) {
    serve(unixOptions());
    const auto client = connect();
    const auto job = await<model::JobInfo>([&](auto reply) { client->getJob("nope", reply); });
    ASSERT_FALSE(job.ok());
    EXPECT_EQ(job.failure().code, FailureCode::kNotFound);
    EXPECT_EQ(job.failure().cause, "There is no job \"nope\".");
    EXPECT_EQ(job.failure().remedy, "List the jobs.");
    EXPECT_FALSE(job.failure().retryable);
}

TEST_F(JobsTest, ALongNameComesBackShortened) {
    serve(unixOptions());
    const auto client = connect();
    const auto job = await<model::JobInfo>(
        [&](auto reply) { client->getJob(std::string(1'900'000, 'x'), reply); });
    ASSERT_FALSE(job.ok());
    EXPECT_EQ(job.failure().code, FailureCode::kNotFound);
    EXPECT_THAT(job.failure().cause, HasSubstr("There is no job \"xxx"));
    EXPECT_LT(job.failure().cause.size(), 2000u);
}

TEST_F(JobsTest, AnUnreadableJobTextNamesFileAndLine) {
    serve(unixOptions());
    const auto client = connect();
    client::JobText text;
    text.text = "name = \"a\"\nreplicas = \"many\"\n";
    text.fileName = "mine.toml";
    text.baseDir = dir_;
    const auto job = await<model::JobInfo>([&](auto reply) { client->startJob(text, {}, reply); });
    ASSERT_FALSE(job.ok());
    EXPECT_EQ(job.failure().code, FailureCode::kInvalid);
    EXPECT_THAT(job.failure().cause, HasSubstr("mine.toml:2"));
    EXPECT_THAT(job.failure().cause, HasSubstr("replicas"));
}

TEST_F(JobsTest, ARepeatedRequestIdActsOnce) {
    serve(unixOptions());
    const auto client = connect();
    const auto first = act(*client, {"same-id", 0});
    const auto second = act(*client, {"same-id", 0});
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(first.value(), second.value());
    EXPECT_EQ(backend_.calls().size(), 1u);
}

TEST_F(JobsTest, ARequestIdIsNotReusedForSomethingElse) {
    serve(unixOptions());
    const auto client = connect();
    ASSERT_TRUE(act(*client, {"same-id", 0}).ok());
    const auto other = act(*client, {"same-id", 0}, model::ActionKind::kResume);
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.failure().code, FailureCode::kInvalid);
    EXPECT_EQ(backend_.calls().size(), 1u);
}

TEST_F(JobsTest, AStaleRevisionIsRefusedSayingWhatChanged) {
    serve(unixOptions());
    const auto client = connect();
    const auto stale = act(*client, {"", 99});
    ASSERT_FALSE(stale.ok());
    EXPECT_EQ(stale.failure().code, FailureCode::kStale);
    EXPECT_THAT(stale.failure().cause, HasSubstr("eplica 2 left since"));
    EXPECT_TRUE(act(*client, {"", 1}).ok());
}

TEST_F(JobsTest, PreflightTellsAndInjectAnswersWithTheFaultsId) {
    serve(unixOptions());
    const auto client = connect();
    model::FaultSpec fault;
    const auto refused =
        await<model::Preflight>([&](auto reply) { client->preflight("demo", fault, reply); });
    ASSERT_TRUE(refused.ok());
    EXPECT_FALSE(refused.value().allowed);
    EXPECT_EQ(refused.value().refusal, "no replica is named");
    fault.replica = 2;
    const auto id = await<uint64_t>([&](auto reply) { client->inject("demo", fault, {}, reply); });
    ASSERT_TRUE(id.ok());
    EXPECT_EQ(id.value(), 1u);
}

TEST_F(JobsTest, ACampaignIsLookedAtStartedAndStopped) {
    serve(unixOptions());
    const auto client = connect();
    model::CampaignText text;
    text.fileName = "storm.toml";
    text.durationMs = 60'000;
    text.seed = 7;
    const auto seen = await<model::CampaignPreflight>(
        [&](auto reply) { client->preflight("demo", text, reply); });
    ASSERT_TRUE(seen.ok()) << seen.failure().cause;
    EXPECT_EQ(seen.value().preflight.title, "Campaign storm.toml");
    EXPECT_EQ(seen.value().campaign.durationMs, 60'000u);
    EXPECT_EQ(seen.value().campaign.seed, 7u);
    ASSERT_EQ(seen.value().campaign.plan.size(), 1u);
    const auto start = [&](const client::Mutation& mutation) {
        return await<uint64_t>(
            [&](auto reply) { client->startCampaign("demo", text, mutation, reply); });
    };
    EXPECT_EQ(start({"", 99}).failure().code, FailureCode::kStale);
    EXPECT_EQ(start({"once", 0}).value(), 1u);
    EXPECT_EQ(start({"once", 0}).value(), 1u);
    const auto stop = [&](uint64_t id) {
        return await<client::Done>(
            [&](auto reply) { client->stopCampaign("demo", id, {}, reply); });
    };
    EXPECT_EQ(stop(9).failure().code, FailureCode::kNotFound);
    EXPECT_TRUE(stop(1).ok());
}

TEST_F(JobsTest, ACallPastItsDeadlineTimesOut) {
    std::promise<void> release;
    const auto released = release.get_future().share();
    backend_.onCall = [released] { released.wait(); };
    serve(unixOptions());
    client::Options options;
    options.target = "unix:" + socket();
    options.deadline = std::chrono::milliseconds(50);
    auto client = client::Client::open(options);
    ASSERT_TRUE(client.ok());
    const auto job =
        await<model::JobInfo>([&](auto reply) { client.value()->getJob("demo", reply); });
    release.set_value();
    ASSERT_FALSE(job.ok());
    EXPECT_EQ(job.failure().code, FailureCode::kTimeout);
    EXPECT_TRUE(job.failure().retryable);
}

TEST_F(JobsTest, AStartKnowsWhenItsCallerGaveUp) {
    struct Seen {  // a call goes on in the server's thread when its client has given it up
        std::atomic<bool> entered{false};
        std::atomic<bool> knew{false};
    };
    const auto seen = std::make_shared<Seen>();
    const auto end = std::chrono::steady_clock::now() + kForever;
    backend_.onStart = [seen, end](const service::Call& call) {
        seen->entered = true;
        while (!call.gaveUp() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        if (call.gaveUp()) seen->knew = true;
    };
    serve(unixOptions());
    client::Options options;
    options.target = "unix:" + socket();
    options.deadline = std::chrono::milliseconds(50);
    auto client = client::Client::open(options);
    ASSERT_TRUE(client.ok());
    do {  // on a busy machine the deadline may pass before the call is there
        const auto job = await<model::JobInfo>(
            [&](auto reply) { client.value()->startJob(model::JobSpec{}, {}, reply); });
        ASSERT_FALSE(job.ok());
        EXPECT_EQ(job.failure().code, FailureCode::kTimeout);
    } while (!seen->entered && std::chrono::steady_clock::now() < end);
    while (!seen->knew && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(seen->knew);
}

TEST_F(JobsTest, DestroyingTheClientCancelsWhatIsUnderWay) {
    struct Entered {  // the call goes on in the server's thread when this function has returned
        std::promise<void> promise;
        std::once_flag once;
    };
    const auto entered = std::make_shared<Entered>();
    std::promise<void> release;
    const auto released = release.get_future().share();
    backend_.onCall = [entered, released] {
        std::call_once(entered->once, [&] { entered->promise.set_value(); });
        released.wait();
    };
    serve(unixOptions());
    auto client = connect();
    std::promise<client::Failure> failed;
    client->getJob("demo", [&](client::Result<model::JobInfo> result) {
        failed.set_value(result.ok() ? client::Failure{} : result.failure());
    });
    entered->promise.get_future().wait();
    client.reset();
    auto future = failed.get_future();
    ASSERT_EQ(future.wait_for(std::chrono::seconds(0)), std::future_status::ready);
    EXPECT_EQ(future.get().code, FailureCode::kCancelled);
    release.set_value();
}

TEST_F(JobsTest, ReadsThatHangOrWereAbandonedDoNotKeepAStopWaiting) {
    constexpr int kHanging = 1;  // as many as the server has threads for reads of one caller
    std::atomic<int> entered;
    std::atomic<bool> held;
    backend_.onCall = [&] {
        if (++entered <= kHanging) held.wait(true);
    };
    serve(unixOptions());
    const auto client = connect();
    // The server can hear that they were abandoned after it is asked to go on: then once more.
    int abandonedAsked = 1;
    for (int attempt = 0; attempt < 20 && abandonedAsked > 0; ++attempt) {
        held = true;
        entered = 0;
        auto reader = connect();
        for (int i = 0; i < 40; ++i) reader->getJob("demo", [](client::Result<model::JobInfo>) {});
        while (entered < kHanging) std::this_thread::yield();
        reader.reset();
        const auto stopped = await<model::JobInfo>(
            [&](auto reply) { client->stopJob("demo", true, client::Mutation{}, reply); });
        EXPECT_TRUE(stopped.ok()) << stopped.failure().cause;
        const int soFar = entered;
        held = false;
        held.notify_all();
        const auto job = await<model::JobInfo>([&](auto reply) { client->getJob("demo", reply); });
        EXPECT_TRUE(job.ok());
        abandonedAsked = entered - soFar - 1;
    }
    EXPECT_EQ(abandonedAsked, 0) << "what was abandoned is not asked of the backend";
}

TEST_F(JobsTest, CallsThatAreGivenUpAtOnceAreKeptInBoundedNumber) {
    std::atomic<bool> held = true;
    backend_.onCall = [&] { held.wait(true); };
    serve(unixOptions());
    client::Options options;
    options.target = "unix:" + socket();
    options.deadline = std::chrono::milliseconds(200);
    const auto impatient = client::Client::open(options);
    ASSERT_TRUE(impatient.ok());
    client::Failure failure;
    for (int attempt = 0; attempt < 40 && failure.code != FailureCode::kRefused; ++attempt) {
        auto reader = connect();
        for (int i = 0; i < 100; ++i) reader->getJob("demo", [](client::Result<model::JobInfo>) {});
        const auto job =
            await<model::JobInfo>([&](auto reply) { impatient.value()->getJob("demo", reply); });
        if (!job.ok()) failure = job.failure();
    }
    EXPECT_EQ(failure.code, FailureCode::kRefused) << failure.cause;
    EXPECT_THAT(failure.cause, HasSubstr(" has 1000 calls that wait"));
    held = false;
    held.notify_all();
}

TEST_F(JobsTest, TheJobListFollowsChanges) {
    serve(unixOptions());
    const auto client = connect();
    Mutex mutex;
    ConditionVariable changed;
    bool connected = false;
    size_t count = 0;
    client::JobsHandlers handlers;
    handlers.onConnected = [&](const model::ServerInfo&) {
        const MutexLock lock(mutex);
        connected = true;
    };
    handlers.onJobs = [&](const std::vector<model::JobInfo>& jobs) {
        const MutexLock lock(mutex);
        count = jobs.size();
        changed.notify_all();
    };
    const auto watch = client->watchJobs(handlers);
    MutexLock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, kForever, [&] { return count == 1; }));
    EXPECT_TRUE(connected);
    backend_.addJob("second");
    EXPECT_TRUE(changed.wait_for(lock, kForever, [&] { return count == 2; }));
}

TEST_F(JobsTest, ShutdownIsRefusedByADaemonThatIsNotPrivate) {
    serve(unixOptions());
    const auto client = connect();
    const auto done = await<client::Done>([&](auto reply) { client->shutdown({}, reply); });
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.failure().code, FailureCode::kRefused);
}

}  // namespace
}  // namespace bulkhead::testing
