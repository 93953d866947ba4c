// SPDX-License-Identifier: Apache-2.0
// The driver of one job, between a machine that decides and agents and ranks that are connections
// in memory: what it has started and ended, what it does when it is told a thing twice, late or of
// another incarnation, and what an operator reads of it. The clock is set by hand.
#include "backend/runtime/coordinator/job_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "backend/common/codec.h"
#include "backend/common/file_system.h"
#include "backend/model/json.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/coordinator/run_files.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class HandClock final : public Clock {
  public:
    MonoNs now() const override { return at; }
    int64_t unixNs() const override { return 1000 * kSecond + at; }
    MonoNs at = kSecond;
};

/// Two replicas of one rank each, on two nodes of two slots.
class JobCoordinatorTest : public testing::Test {
  protected:
    struct AgentEnd {
        std::unique_ptr<ControlChannel> channel;
        std::vector<AgentCommand> heard;
    };
    struct RankEnd {
        std::unique_ptr<ControlChannel> channel;
        std::vector<protocol::ToReplica> heard;
    };

    JobCoordinatorTest()
        : reactor_(*Reactor::create(clock_)),
          dir_(testing::TempDir() + "job_" + std::to_string(::getpid())),
          pool_(newPool()) {
        std::filesystem::create_directories(dir_);
        spec_.name = "test";
        spec_.replicas = 2;
        spec_.shards = 1;
        spec_.allowFaults = true;
        spec_.domains = {{"verse", {dir_ + "/none.txt"}}};
        spec_.policies.checkpointEverySteps = 0;
        spec_.timeouts.joinMs = 2000;
        spec_.checkpointDir = dir_ + "/checkpoints";
    }
    ~JobCoordinatorTest() override {
        job_.reset();
        std::filesystem::remove_all(dir_);
    }

    std::unique_ptr<AgentPool> newPool() {
        return std::make_unique<AgentPool>(*reactor_, diskFiles(), AgentHeartbeat{1000, 3},
                                           dir_ + "/cordoned", listener());
    }
    AgentPool::Listener listener() {
        AgentPool::Listener l;
        l.nodeChanged = [this](const NodeStatus& n, const std::string& why) {
            if (job_) job_->nodeChanged(n, why);
        };
        l.rankUp = [this](const std::string& n, const RankUp& up) {
            if (job_) job_->rankUp(n, up);
        };
        l.rankDied = [this](const std::string& n, const RankDied& died) {
            if (job_) job_->rankDied(n, died);
            return true;
        };
        l.rankGone = [this](const std::string& n, const RankGone& gone) {
            if (job_) job_->rankGone(n, gone);
            return true;
        };
        l.rankUnknown = [this](const std::string& n, const RunningRank& rank,
                               const std::string& why) {
            if (job_) job_->rankUnknown(n, rank, why);
        };
        l.startLost = [this](const std::string& n, const RankProcess& p) {
            if (job_) job_->startLost(n, p);
        };
        l.other = [this](const std::string& n, const AgentMessage& m) {
            if (job_) job_->agentSaid(n, m);
            return true;
        };
        return l;
    }
    void join(const std::string& node, uint32_t slots = 2, std::vector<RunningRank> running = {},
              uint32_t gpus = 0) {
        auto [here, there] = memoryChannels(*reactor_, *reactor_);
        AgentEnd& end = agents_[node];
        end.channel = std::move(there);
        end.channel->start(
            [&end](std::string bytes) { end.heard.push_back(*decode<AgentCommand>(bytes)); },
            [](const absl::Status&) {});
        AgentHello hello;
        hello.node = node;
        hello.address = "10.0.0." + std::to_string(agents_.size());
        hello.slots = slots;
        for (uint32_t i = 0; i < gpus; ++i) hello.gpus.push_back(node + std::to_string(i));
        hello.running = std::move(running);
        pool_->accept(std::move(here), hello);
        run();
    }
    absl::StatusOr<std::unique_ptr<JobCoordinator>> tryToBegin() {
        JobBeginning beginning{.run = "run-1",
                               .dir = dir_,
                               .spec = spec_,
                               .past = past_,
                               .resumedFrom = "",
                               .resume = std::nullopt,
                               .id = std::string(32, 'a'),
                               .newSecret = newSecret_};
        JobSurroundings around{.reactor = *reactor_,
                               .files = diskFiles(),
                               .pool = *pool_,
                               .workerPath = "/worker",
                               .secret = Secret::ofText("job"),
                               .secretId = secretId_,
                               .version = "test",
                               .proposer = proposer_,
                               .halted = {}};
        return JobCoordinator::create(std::move(around), std::move(beginning));
    }
    void begin() {
        auto job = tryToBegin();
        ASSERT_TRUE(job.ok()) << job.status();
        job_ = *std::move(job);
        job_->setObserver([this](const model::Event& e) { events_.push_back(e); });
        job_->begin();
        run();
    }
    /// Its program ended; the next one knows what history does.
    void another() {
        past_ = job_->state();
        job_.reset();
        ranks_.clear();
        events_.clear();
        begin();
    }
    /// Its program ended, and no agent has found the next one.
    void alone() {
        past_ = job_->state();
        job_.reset();
        ranks_.clear();
        for (auto& [name, agent] : agents_) agent.channel = nullptr;
        pool_ = newPool();
        events_.clear();
        begin();
    }
    /// All that is due, and what follows.
    void run() {
        for (int i = 0; i < 20; ++i) reactor_->runDue();
    }
    /// Agents and ranks that are connected beat all the while.
    void pass(MonoNs time) {
        for (const MonoNs end = clock_.at + time; clock_.at < end;) {
            clock_.at += 50 * kMillisecond;
            for (auto& [name, agent] : agents_)
                if (agent.channel) (void)agent.channel->send(encode(AgentMessage(AgentBeat{})));
            for (auto& [rank, end_] : ranks_)
                if (end_.channel) {
                    const protocol::Beat beat{rank.first, rank.second, protocol::Phase::kIdle, 0,
                                              ++progress_};
                    (void)end_.channel->send(encode(protocol::ToCoordinator(beat)));
                }
            run();
        }
    }
    void agentSays(const std::string& node, const AgentMessage& message) {
        (void)agents_.at(node).channel->send(encode(message));
        run();
    }
    static RankProcess process(int32_t replica, uint32_t incarnation = 1) {
        return {"run-1", {replica, 0}, incarnation};
    }
    static std::string nodeOf(int32_t replica) { return "node" + std::to_string(replica); }
    int32_t pid(int32_t replica, uint32_t incarnation = 1) const {
        return 100 * static_cast<int32_t>(incarnation) + replica;
    }
    void up(int32_t replica, uint32_t incarnation = 1) {
        agentSays(placed(replica, incarnation),
                  RankUp{process(replica, incarnation), pid(replica, incarnation), ""});
    }
    /// The node whose agent was told to start it.
    std::string placed(int32_t replica, uint32_t incarnation = 1) const {
        for (const auto& [name, agent] : agents_)
            for (const StartRank& s : heard<StartRank>(name))
                if (s.process == process(replica, incarnation)) return name;
        ADD_FAILURE() << "r" << replica << " #" << incarnation << " was never started";
        return "node0";
    }
    size_t starts(int32_t replica, uint32_t incarnation) const {
        size_t n = 0;
        for (const auto& [name, agent] : agents_)
            for (const StartRank& s : heard<StartRank>(name))
                n += s.process == process(replica, incarnation);
        return n;
    }
    RankEnd& connect(int32_t replica, uint32_t incarnation = 1) {
        auto [here, there] = memoryChannels(*reactor_, *reactor_);
        RankEnd& end = ranks_[{RankId{replica, 0}, incarnation}];
        end.heard.clear();
        end.channel = std::move(there);
        end.channel->start(
            [&end](std::string bytes) { end.heard.push_back(*decode<protocol::ToReplica>(bytes)); },
            [](const absl::Status&) {});
        protocol::Hello hello;
        hello.endpoint.rank = {replica, 0};
        hello.endpoint.incarnation = incarnation;
        job_->rankConnected(std::move(here), hello);
        run();
        return end;
    }
    void rankSays(int32_t replica, const protocol::ToCoordinator& message,
                  uint32_t incarnation = 1) {
        (void)ranks_.at({RankId{replica, 0}, incarnation}).channel->send(encode(message));
        run();
    }
    void report(int32_t replica, uint64_t step) {
        protocol::Report r;
        r.replica = replica;
        r.incarnation = 1;
        r.lineage = job_->status().lineage;
        r.hasState = r.ready = true;
        r.step = step;
        r.hashes = {step};
        rankSays(replica, r);
    }
    template <class M>
    std::vector<M> told(int32_t replica, uint32_t incarnation = 1) const {
        std::vector<M> found;
        const auto it = ranks_.find({RankId{replica, 0}, incarnation});
        if (it == ranks_.end()) return found;
        for (const auto& m : it->second.heard)
            if (const auto* x = std::get_if<M>(&m)) found.push_back(*x);
        return found;
    }
    /// But the coordinator.
    void expectNobodyIsLost() {
        const auto incidents = all<model::IncidentOpened>();
        ASSERT_THAT(incidents, SizeIs(1));
        EXPECT_EQ(incidents[0].cause, model::EvidenceKind::kControllerLost);
    }
    void commit() {
        const uint64_t step = job_->status().step + 1;
        for (const int32_t r : {0, 1}) {
            protocol::Quorum q;
            for (const auto& each : told<protocol::Quorum>(r))
                if (each.step == step) q = each;
            if (q.step == 0) continue;
            protocol::ReplicaVote v;
            v.replica = r;
            v.incarnation = 1;
            v.term = q.term;
            v.step = q.step;
            v.epoch = q.epoch;
            v.attempt = q.attempt;
            v.complete = true;
            v.gradSquares = {1};
            v.hashes = {step - 1};
            v.shardsIn = 1;
            rankSays(r, v);
        }
        EXPECT_EQ(job_->status().step, step);
    }
    /// Both replicas train, and so many steps are committed.
    void train(uint64_t steps) {
        join("node0");
        join("node1");
        begin();
        for (const int32_t r : {0, 1}) up(r);
        for (const int32_t r : {0, 1}) connect(r);
        for (const int32_t r : {0, 1}) report(r, 0);
        for (uint64_t s = 0; s < steps; ++s) commit();
    }
    RankGone gone(int32_t replica, int32_t code, int32_t sig = 0, uint32_t incarnation = 1) const {
        return {process(replica, incarnation),
                pid(replica, incarnation),
                code,
                sig,
                true,
                clock_.unixNs(),
                0,
                ""};
    }
    template <class T>
    std::vector<T> heard(const std::string& node) const {
        std::vector<T> found;
        for (const AgentCommand& c : agents_.at(node).heard)
            if (const auto* x = std::get_if<T>(&c)) found.push_back(*x);
        return found;
    }
    std::vector<int> signalsTo(int32_t replica, uint32_t incarnation = 1) const {
        std::vector<int> found;
        for (const auto& [name, agent] : agents_)
            for (const SignalRank& s : heard<SignalRank>(name))
                if (s.process == process(replica, incarnation)) found.push_back(s.signal);
        return found;
    }
    template <class T>
    std::vector<T> all() const {
        std::vector<T> found;
        for (const model::Event& e : events_)
            if (const auto* t = std::get_if<T>(&e.body)) found.push_back(*t);
        return found;
    }

    HandClock clock_;
    std::unique_ptr<Reactor> reactor_;
    std::string dir_;
    std::string secretId_;
    bool newSecret_ = false;
    std::unique_ptr<AgentPool> pool_;
    model::JobSpec spec_;
    model::RunState past_;
    Proposer proposer_;
    std::map<std::string, AgentEnd> agents_;
    std::map<std::pair<RankId, uint32_t>, RankEnd> ranks_;
    std::vector<model::Event> events_;
    uint64_t progress_ = 0;
    std::unique_ptr<JobCoordinator> job_;
};

// ---- starts

TEST_F(JobCoordinatorTest, EachReplicaIsStartedOnceWhereThereIsRoomAndCanFindItsJob) {
    join("node0");
    join("node1");
    begin();
    ASSERT_EQ(starts(0, 1) + starts(1, 1), 2u);
    const StartRank start = heard<StartRank>(placed(1)).at(0);
    EXPECT_THAT(start.argv,
                testing::IsSupersetOf({std::string("--job"), std::string("run-1"),
                                       std::string("--incarnation"), std::string("1"),
                                       std::string("--coordinator"), std::string("memory")}));
    up(0);
    up(1);
    EXPECT_THAT(all<model::RankStarted>(), SizeIs(2));
    connect(0);
    ASSERT_THAT(told<protocol::Welcome>(0), SizeIs(1));
    EXPECT_THAT(told<protocol::Welcome>(0)[0].jobJson, HasSubstr("\"test\""));
    up(0);  // told again
    EXPECT_THAT(all<model::RankStarted>(), SizeIs(2));
    const auto status = job_->status();
    EXPECT_THAT(status.replicas[1].nodes, ElementsAre(placed(1)));
}

TEST_F(JobCoordinatorTest, AJobWaitsForTheNodeItNamesAndThenTakesAnother) {
    spec_.placement = {{"node1", {0, 1}}};
    join("node0");
    begin();
    EXPECT_EQ(starts(0, 1), 0u);
    pass(1900 * kMillisecond);
    EXPECT_EQ(starts(0, 1), 0u) << "the nodes of a job come one after the other";
    pass(200 * kMillisecond);
    EXPECT_EQ(starts(0, 1), 1u);
    EXPECT_EQ(placed(0), "node0");
}

TEST_F(JobCoordinatorTest, ANodeThatAJobNamesIsPreferredAsSoonAsItIsThere) {
    spec_.placement = {{"node1", {0, 1}}};
    join("node0");
    begin();
    join("node1");
    EXPECT_EQ(placed(0), "node1");
    EXPECT_EQ(placed(1), "node1");
    EXPECT_THAT(heard<StartRank>("node0"), IsEmpty());
}

TEST_F(JobCoordinatorTest, AJobThatStandsStillForWantOfSlotsSaysSoOnce) {
    join("node0", 1);
    begin();
    EXPECT_EQ(starts(0, 1) + starts(1, 1), 1u);
    const auto said = [this] {
        size_t n = 0;
        for (const auto& r : all<model::ReplicaChanged>())
            n += r.why.find("no node has 1 free slots (node0 1 of 1 used)") != std::string::npos;
        return n;
    };
    pass(1900 * kMillisecond);
    EXPECT_EQ(said(), 0u) << "an agent may be about to come";
    pass(4 * kSecond);
    EXPECT_EQ(said(), 1u);
    const int32_t waits = starts(0, 1) == 1 ? 1 : 0;
    pass(3 * 60 * kSecond);
    for (const auto& opened : all<model::IncidentOpened>())
        EXPECT_NE(opened.replica, waits) << "whoever waits for room is not lost";
    join("node1", 2);
    EXPECT_EQ(starts(waits, 1), 1u);
}

TEST_F(JobCoordinatorTest, AJobThatIsStoppedBeforeANodeHasItsRanksEndsAtOnce) {
    begin();
    ASSERT_TRUE(job_->stop(true, "test").ok());
    run();
    ASSERT_THAT(all<model::RunFinished>(), SizeIs(1));
    EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty()) << "nothing was lost";
}

TEST_F(JobCoordinatorTest, AJobThatStandsStillForWantOfGpusSaysSoAndWhatItMayDo) {
    spec_.device = "auto";
    join("node0", 4, {}, 1);
    begin();
    EXPECT_EQ(starts(0, 1) + starts(1, 1), 1u);
    EXPECT_TRUE(heard<StartRank>("node0").front().onGpu);
    EXPECT_FALSE(heard<StartRank>("node0").front().shareGpu);
    pass(4 * kSecond);
    EXPECT_THAT(all<model::ReplicaChanged>().back().why,
                HasSubstr("no node has 1 free slots with a GPU each (node0 1 of 4 used and 1 of 1 "
                          "GPUs); it starts when there are: add a node, use fewer replicas or "
                          "shards, or set share_gpu = true"));
}

TEST_F(JobCoordinatorTest, AJobThatHasBegunWithoutGpusGoesOnWithoutThem) {
    spec_.device = "auto";
    join("node0", 3);
    begin();
    run();
    EXPECT_FALSE(heard<StartRank>("node0").front().noGpu);
    agentSays("node0", RankUp{process(0), pid(0), ""});
    agentSays("node0", RankUp{process(1), 0, "no"});
    join("node1", 1, {}, 1);
    pass(kSecond);
    EXPECT_EQ(placed(1, 2), "node0") << "all of a job are on GPUs, or none";
    EXPECT_TRUE(heard<StartRank>("node0").back().noGpu);
}

TEST_F(JobCoordinatorTest, WhoWaitsForANodeIsNotLostWithTheOneBefore) {
    join("node0", 1);
    join("node1", 1);
    begin();
    for (const int32_t r : {0, 1}) agentSays(placed(r), RankUp{process(r), pid(r), ""});
    const std::string node = placed(1);
    ASSERT_TRUE(pool_->cordon(node, true, "ann").ok());
    agentSays(node, gone(1, 0, SIGKILL));
    pass(kSecond);
    agents_.at(node).channel->close();
    agents_.at(node).channel = nullptr;
    pass(10 * kSecond);
    EXPECT_THAT(all<model::IncidentOpened>(), SizeIs(1)) << "the kill alone";
    const model::ReplicaView* replica = model::findReplica(job_->state(), 1);
    EXPECT_THAT(replica->why, HasSubstr("no node has 1 free slots"));
    EXPECT_EQ(replica->node, "");
    EXPECT_THAT(model::nodesOf(job_->state(), *replica), IsEmpty());
    join("node2", 1);
    EXPECT_EQ(placed(1, 2), "node2");
}

TEST_F(JobCoordinatorTest, RanksThatMayShareAGpuAreAllStarted) {
    spec_.device = "auto";
    spec_.shareGpu = true;
    spec_.shards = 2;  // more ranks of a replica than the node has GPUs
    join("node0", 4, {}, 1);
    begin();
    EXPECT_EQ(starts(0, 1) + starts(1, 1), 2u);
    EXPECT_TRUE(heard<StartRank>("node0").front().shareGpu);
}

TEST_F(JobCoordinatorTest, TheGpuThatARankWasGivenIsTold) {
    join("node0");
    begin();
    agentSays("node0", RankUp{process(0), 555, "", {3, "GPU-d"}});
    EXPECT_EQ(all<model::RankStarted>().back().gpu, 3u);
    EXPECT_EQ(all<model::RankStarted>().back().gpuUuid, "GPU-d");
    EXPECT_EQ(model::findRank(job_->state(), {0, 0})->gpus, std::vector<uint32_t>{3});
}

TEST_F(JobCoordinatorTest, AFileThatRanksRunIsToldOnceAndAgainWhenItWasReplaced) {
    join("node0");
    begin();
    const auto start = [this](uint32_t incarnation, const std::string& hash) {
        agentSays("node0", RankUp{process(0, incarnation), pid(0, incarnation), ""});
        agentSays("node0", RankFiles{process(0, incarnation),
                                     {{"/opt/worker", "w"}, {"/opt/plugin.so", hash}}});
    };
    start(1, "a");
    ASSERT_THAT(all<model::ProgramSeen>(), SizeIs(2));
    EXPECT_EQ(all<model::ProgramSeen>()[1].path, "/opt/plugin.so");
    EXPECT_EQ(all<model::ProgramSeen>()[1].before, "");
    start(2, "a");
    EXPECT_THAT(all<model::ProgramSeen>(), SizeIs(2)) << "the same";
    start(3, "b");
    ASSERT_THAT(all<model::ProgramSeen>(), SizeIs(3));
    const model::ProgramSeen replaced = all<model::ProgramSeen>()[2];
    EXPECT_EQ(replaced.node, "node0");
    EXPECT_EQ(replaced.path, "/opt/plugin.so");
    EXPECT_EQ(replaced.sha256, "b");
    EXPECT_EQ(replaced.before, "a");
    EXPECT_EQ(job_->state().programs.size(), 3u);
}

TEST_F(JobCoordinatorTest, AStartThatANodeRefusesIsTriedAgainAsANewIncarnation) {
    join("node0");
    join("node1");
    begin();
    agentSays(placed(0), RankUp{process(0), 0, "no such program"});
    EXPECT_THAT(all<model::IncidentOpened>().at(0).title,
                HasSubstr("it could not be started: node " + placed(0) + ": no such program"));
    EXPECT_EQ(starts(0, 2), 1u);
    EXPECT_THAT(all<model::RankStarted>(), IsEmpty());
}

TEST_F(JobCoordinatorTest, AStartThatAnAgentTookAlongIsBegunElsewhere) {
    join("node0");
    join("node1");
    begin();
    const std::string node = placed(0);
    const std::string other = node == "node0" ? "node1" : "node0";
    agents_.at(node).channel->close();
    run();
    EXPECT_EQ(starts(0, 2), 1u);
    EXPECT_EQ(placed(0, 2), other);
    EXPECT_EQ(starts(1, 2), placed(1) == node ? 1u : 0u);
}

TEST_F(JobCoordinatorTest, ANewIncarnationWaitsUntilThePreviousIsGoneFromItsNode) {
    join("node0", 3);
    begin();
    up(0);
    up(1);
    agentSays("node0", RankDied{process(0), pid(0), SIGKILL, clock_.unixNs(), 5, ""});
    EXPECT_THAT(heard<AgentHeard>("node0"), SizeIs(1));
    ASSERT_THAT(all<model::IncidentOpened>(), SizeIs(1));
    EXPECT_EQ(starts(0, 2), 0u) << "it holds addresses and memory";
    EXPECT_THAT(all<model::RankExited>(), IsEmpty());
    pass(30 * kSecond);
    size_t waits = 0;
    for (const auto& r : all<model::ReplicaChanged>())
        if (r.why.find("it starts when process 100 of r0s0") != std::string::npos) ++waits;
    EXPECT_EQ(waits, 1u) << "what keeps a replica away is said";
    agentSays("node0", gone(0, 0, SIGKILL));
    EXPECT_EQ(starts(0, 2), 1u);
    ASSERT_THAT(all<model::RankExited>(), SizeIs(1));
    EXPECT_EQ(all<model::RankExited>()[0].signal, SIGKILL);
    EXPECT_THAT(all<model::IncidentOpened>(), SizeIs(1)) << "its end is no second loss";
}

TEST_F(JobCoordinatorTest, APreviousProcessThatEndsInTimeIsNotSpokenOf) {
    join("node0", 3);
    begin();
    up(0);
    up(1);
    agentSays("node0", RankDied{process(0), pid(0), SIGKILL, clock_.unixNs(), 5, ""});
    pass(3 * kSecond);
    EXPECT_EQ(starts(0, 2), 0u);
    agentSays("node0", gone(0, 0, SIGKILL));
    pass(3 * kSecond);
    for (const auto& r : all<model::ReplicaChanged>())
        EXPECT_THAT(r.why, testing::Not(HasSubstr("it starts when process")));
    EXPECT_EQ(starts(0, 2), 1u);
}

TEST_F(JobCoordinatorTest, ARankOfWhichItsAgentKnowsNothingTrainsOnIfItIsConnected) {
    train(1);
    const std::string node = placed(0);
    agents_.at(node).channel->close();
    run();
    join(node);
    pass(kSecond);
    size_t said = 0;
    for (const auto& e : all<model::EvidenceSeen>())
        said += e.detail.find("trains on without an agent") != std::string::npos;
    EXPECT_GE(said, 1u);
    EXPECT_THAT(all<model::RankExited>(), IsEmpty());
    EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty());
    commit();
}

TEST_F(JobCoordinatorTest, AJobDescribesItsModelOnce) {
    train(1);
    protocol::ModelDescribed described;
    described.name = "small";
    for (const int32_t r : {0, 1}) rankSays(r, described);
    ASSERT_THAT(all<model::ModelDescribed>(), SizeIs(1));
    EXPECT_EQ(all<model::ModelDescribed>()[0].model.name, "small");
}

TEST_F(JobCoordinatorTest, EveryLifeHasAHigherTerm) {
    train(1);
    EXPECT_EQ(job_->status().term, 1u);
    another();
    EXPECT_EQ(job_->status().term, 2u);
    another();
    EXPECT_EQ(job_->status().term, 3u);
}

/// A disk that said OK before it had written, or somebody's old copy in the log's place.
TEST_F(JobCoordinatorTest, ALogThatHasLostStepsIsSaidAndNoNumberIsUsedTwice) {
    train(1);
    const auto kept = std::filesystem::file_size(dir_ + "/commit.log");
    commit();
    commit();
    past_ = job_->state();
    // Only history knows this of what is lost.
    past_.lineage = 5;
    past_.term = 7;
    past_.replicas[0].incarnation = 4;
    job_.reset();
    std::filesystem::resize_file(dir_ + "/commit.log", kept);
    ranks_.clear();
    events_.clear();
    begin();
    pass(3 * kSecond);
    ASSERT_THAT(all<model::InvariantBroken>(), SizeIs(1));
    EXPECT_EQ(all<model::InvariantBroken>()[0].invariant, "I6");
    EXPECT_THAT(all<model::InvariantBroken>()[0].detail,
                HasSubstr("ends with step 1 of lineage 1, and people were told of step 3 of "
                          "lineage 5"));
    ASSERT_THAT(all<model::LineageOpened>(), SizeIs(1));
    EXPECT_EQ(all<model::LineageOpened>()[0].lineage, 6u);
    EXPECT_EQ(all<model::LineageOpened>()[0].fromStep, 0u) << "there was no checkpoint";
    EXPECT_EQ(job_->status().term, 8u);
    EXPECT_EQ(starts(0, 5), 1u);
    EXPECT_EQ(starts(1, 2), 1u);
    EXPECT_THAT(signalsTo(1, 1), testing::Contains(SIGKILL)) << "it holds what nobody can prove";
    another();
    EXPECT_THAT(all<model::InvariantBroken>(), IsEmpty()) << "it is said once";
}

TEST_F(JobCoordinatorTest, ARunWhoseLogIsEmptyDoesNotBeginAgain) {
    train(3);
    past_ = job_->state();
    job_.reset();
    ranks_.clear();
    const std::string log = dir_ + "/commit.log";
    std::filesystem::resize_file(log, 0);
    for (const bool there : {true, false}) {
        if (!there) std::filesystem::remove(log);
        const auto job = tryToBegin();
        ASSERT_FALSE(job.ok());
        EXPECT_THAT(std::string(job.status().message()),
                    HasSubstr("commit.log has nothing of this run, which was at step 3"));
    }
}

TEST_F(JobCoordinatorTest, AnotherRunsLogIsNotTakenForThisOnes) {
    train(3);
    past_ = job_->state();
    job_.reset();
    ranks_.clear();
    const std::string log = dir_ + "/commit.log";
    for (const bool finished : {false, true}) {
        std::string foreign(protocol::kLogHeader);
        foreign += protocol::encodeEntry(protocol::LogTerm{1, std::string(32, 'f')});
        if (finished) foreign += protocol::encodeEntry(protocol::LogFinished{});
        std::ofstream(log) << foreign;
        EXPECT_TRUE(isUnfinished(diskFiles(), dir_)) << "it is taken up, and said";
        const auto job = tryToBegin();
        ASSERT_FALSE(job.ok());
        EXPECT_THAT(std::string(job.status().message()), HasSubstr("commit.log is another run's"));
    }
}

// ---- ends

TEST_F(JobCoordinatorTest, WhatEndsUnaskedIsALossAndWhatWasStoppedIsNot) {
    train(2);
    agentSays(placed(1), gone(1, 3));
    ASSERT_THAT(all<model::RankExited>(), SizeIs(1));
    EXPECT_FALSE(all<model::RankExited>()[0].expected);
    EXPECT_EQ(all<model::RankExited>()[0].exitCode, 3);
    EXPECT_THAT(all<model::IncidentOpened>(), SizeIs(1));
    agentSays(placed(1), gone(1, 3));  // its agent did not hear that it was heard
    EXPECT_THAT(all<model::RankExited>(), SizeIs(1));
    EXPECT_EQ(starts(1, 2), 1u);
    ASSERT_TRUE(job_->stop(false, "ana").ok());
    commit();
    pass(500 * kMillisecond);
    agentSays(placed(0), gone(0, 0));
    EXPECT_TRUE(all<model::RankExited>().back().expected);
}

TEST_F(JobCoordinatorTest, TheDeathOfAnotherIncarnationIsNoLoss) {
    train(1);
    agentSays("node0", RankDied{process(0, 7), 5, SIGKILL, clock_.unixNs(), 0, ""});
    agentSays("node0", RankDied{process(9), 5, SIGKILL, clock_.unixNs(), 0, ""});
    agentSays("node0", gone(0, 1, 0, 7));
    EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty());
    agentSays(placed(0), RankDied{process(0), pid(0), SIGKILL, clock_.unixNs(), 0, ""});
    agentSays(placed(0), RankDied{process(0), pid(0), SIGKILL, clock_.unixNs(), 0, ""});
    EXPECT_THAT(all<model::IncidentOpened>(), SizeIs(1));
}

TEST_F(JobCoordinatorTest, ARankThatSpeaksForAnotherReplicaLosesItsConnectionAndHarmsItNot) {
    const auto about = [](auto message) {
        message.replica = 0;
        message.incarnation = 1;
        return message;
    };
    protocol::Hello hello;
    hello.endpoint.incarnation = 1;
    const std::vector<protocol::ToCoordinator> forged = {
        hello,
        protocol::RankHopeless{{0, 0}, 1, "no card"},
        protocol::LeaveAsked{{0, 0}, 1},
        protocol::CheckpointUnusable{0, 1, "manifest.json", "damaged"},
        about(protocol::Report{}),
        about(protocol::ReplicaVote{}),
        protocol::FaultNoted{1, {0, 0}},
        protocol::Beat{{1, 0}, 2}};
    train(2);
    for (const protocol::ToCoordinator& message : forged) {
        rankSays(1, message);
        EXPECT_FALSE(ranks_.at({RankId{1, 0}, 1}).channel->isOpen()) << message.index();
        connect(1);
    }
    EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty());
    EXPECT_THAT(told<protocol::Expelled>(0), IsEmpty());
    commit();
}

TEST_F(JobCoordinatorTest, AnAgentSpeaksForTheProcessesOfItsOwnNode) {
    train(2);
    ASSERT_NE(placed(0), placed(1));
    agentSays(placed(1), RankDied{process(0), pid(0), SIGKILL, clock_.unixNs(), 0, ""});
    agentSays(placed(1), gone(0, 1));
    agentSays(placed(1), RankUp{process(0), 555, ""});
    EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty());
    EXPECT_THAT(all<model::RankExited>(), IsEmpty());
    commit();
    agentSays(placed(0), gone(0, 1));
    EXPECT_THAT(all<model::IncidentOpened>(), SizeIs(1));
}

TEST_F(JobCoordinatorTest, AProcessThatWasReplacedWhileItsAgentWasAwayIsKilledWhenItIsHeardOf) {
    train(1);
    const std::string node = placed(0);
    agentSays(node, gone(0, 1));
    ASSERT_EQ(starts(0, 2), 1u);
    up(0, 2);
    agentSays("node1", RankUp{process(0), 555, ""});
    EXPECT_THAT(signalsTo(0, 1), ElementsAre(SIGKILL));
    EXPECT_THAT(signalsTo(0, 2), IsEmpty());
    EXPECT_EQ(all<model::RankStarted>().back().incarnation, 2u);
}

TEST_F(JobCoordinatorTest, AnExpelledReplicaIsKilledAndOneThatIsDrainedIsLetGo) {
    train(2);
    model::Action drain;
    drain.kind = model::ActionKind::kDrain;
    drain.replica = 1;
    ASSERT_TRUE(job_->act(drain, 0, "q1", "ana").ok());
    EXPECT_THAT(signalsTo(1), IsEmpty());
    commit();
    EXPECT_THAT(told<protocol::Leave>(1), SizeIs(1));
    EXPECT_THAT(signalsTo(1), IsEmpty()) << "it was told to leave";
    pass(9 * kSecond);
    EXPECT_THAT(signalsTo(1), IsEmpty());
    pass(1500 * kMillisecond);
    EXPECT_THAT(signalsTo(1), ElementsAre(SIGKILL)) << "it hangs";
    EXPECT_THAT(signalsTo(0), IsEmpty());
}

TEST_F(JobCoordinatorTest, AReplicaThatAnOperatorRestartsIsKilledAndStartedWhenItIsGone) {
    train(2);
    model::Action restart;
    restart.kind = model::ActionKind::kRestartReplica;
    restart.replica = 1;
    ASSERT_TRUE(job_->act(restart, 0, "", "ana").ok());
    run();
    EXPECT_THAT(signalsTo(1), ElementsAre(SIGKILL));
    EXPECT_THAT(signalsTo(0), IsEmpty());
    EXPECT_THAT(told<protocol::Expelled>(1), SizeIs(1));
    agentSays(placed(1), RankUp{process(1), pid(1), ""});
    EXPECT_THAT(signalsTo(1), ElementsAre(SIGKILL, SIGKILL)) << "its agent did not hear that";
    agentSays(placed(1), gone(1, 0, SIGKILL));
    EXPECT_EQ(starts(1, 2), 1u);
    EXPECT_TRUE(all<model::RankExited>().at(0).expected);
}

TEST_F(JobCoordinatorTest, ALostConnectionWithItsProcessAliveIsEvidenceAfterAMoment) {
    train(2);
    ranks_.at({RankId{1, 0}, 1}).channel->close();
    run();
    EXPECT_THAT(all<model::EvidenceSeen>(), IsEmpty()) << "its exit may be about to be told";
    pass(3 * kSecond);
    ASSERT_FALSE(all<model::EvidenceSeen>().empty());
    EXPECT_THAT(all<model::EvidenceSeen>()[0].detail, HasSubstr("the control connection of r1s0"));
}

TEST_F(JobCoordinatorTest, ALostConnectionIsNamedByWhatItsRankSaidLast) {
    train(2);
    const auto prints = [this](RankProcess of, const char* line) {
        agentSays(placed(1), OutputLine{std::move(of), true, line, 0});
    };
    RankProcess before = process(1);
    before.incarnation = 0;
    prints(process(1), "15:25:11.100 critical ValueError: no such row");
    prints(process(1), "15:25:11.101 warning and more");
    prints(before, "15:25:11.102 critical of an earlier start");
    ranks_.at({RankId{1, 0}, 1}).channel->close();
    pass(3 * kSecond);
    ASSERT_FALSE(all<model::EvidenceSeen>().empty());
    EXPECT_THAT(all<model::EvidenceSeen>()[0].detail, "r1s0 ended: ValueError: no such row");
}

TEST_F(JobCoordinatorTest, AConnectionThatComesBackIsNoEvidence) {
    train(2);
    ranks_.at({RankId{1, 0}, 1}).channel->close();
    run();
    connect(1);
    pass(3 * kSecond);
    EXPECT_THAT(all<model::EvidenceSeen>(), IsEmpty());
}

TEST_F(JobCoordinatorTest, ANodeThatIsLostIsToldOnceWithItsReplicas) {
    train(2);
    const std::string node = placed(1);
    agents_.at(node).channel->close();
    agents_.at(node).channel = nullptr;
    pass(5500 * kMillisecond);
    size_t lost = 0;
    for (const auto& n : all<model::NodeChanged>())
        lost += n.node == node && n.state == model::NodeState::kLost;
    EXPECT_EQ(lost, 1u);
    ASSERT_FALSE(all<model::EvidenceSeen>().empty());
    EXPECT_EQ(all<model::EvidenceSeen>()[0].kind, model::EvidenceKind::kNodeLost);
}

// ---- what agents see

TEST_F(JobCoordinatorTest, AnErrorOfAGpuIsToldOnceWithTheRanksOfThisJobOnIt) {
    train(1);
    GpuTroubleSeen seen;
    seen.trouble.node = "node0";
    seen.trouble.gpu = 1;
    seen.trouble.xid = 79;
    seen.trouble.seenNs = clock_.unixNs();
    seen.ranks = {process(0), {"another", {1, 0}, 1}};
    agentSays("node0", seen);
    ASSERT_THAT(all<model::GpuTroubled>(), SizeIs(1));
    EXPECT_THAT(all<model::GpuTroubled>()[0].ranks, ElementsAre(RankId{0, 0}));
    agentSays("node0", seen);
    EXPECT_THAT(all<model::GpuTroubled>(), SizeIs(1)) << "told again";
    for (const auto& differ : std::vector<std::function<void(model::GpuTroubled&)>>{
             [](auto& t) { t.node = "node1"; }, [](auto& t) { t.gpu = 2; },
             [](auto& t) { ++t.seenNs; }, [](auto& t) { t.xid = 48; },
             [](auto& t) { t.eccUncorrected = 3; }}) {
        const size_t before = all<model::GpuTroubled>().size();
        GpuTroubleSeen other = seen;
        differ(other.trouble);
        agentSays("node0", other);
        EXPECT_EQ(all<model::GpuTroubled>().size(), before + 1) << "another trouble";
    }
    agentSays(placed(0), gone(0, 0, SIGKILL));
    EXPECT_THAT(all<model::IncidentOpened>().at(0).title, HasSubstr("had"));
}

TEST_F(JobCoordinatorTest, WhatARankPrintsIsTold) {
    train(1);
    agentSays("node0", OutputLine{process(0), true, "a line", 3});
    ASSERT_THAT(all<model::RankOutput>(), SizeIs(1));
    EXPECT_EQ(all<model::RankOutput>()[0].line, "[3 lines were too many] a line");
    EXPECT_TRUE(all<model::RankOutput>()[0].isStderr);
}

// ---- operators

TEST_F(JobCoordinatorTest, ARequestIsCarriedOutOnceHoweverOftenItIsMade) {
    train(2);
    model::Action pause;
    pause.kind = model::ActionKind::kPause;
    const uint64_t revision = job_->status().revision;
    EXPECT_TRUE(absl::IsAborted(job_->act(pause, revision + 1, "q1", "ana")));
    EXPECT_FALSE(job_->status().pauseOrdered);
    ASSERT_TRUE(job_->act(pause, revision, "q1", "ana").ok());
    EXPECT_TRUE(job_->status().pauseOrdered);
    EXPECT_TRUE(job_->act(pause, revision, "q1", "ana").ok()) << "the answer may have been lost";
    EXPECT_THAT(all<model::OperatorActed>(), SizeIs(1));
    EXPECT_FALSE(job_->act(pause, 0, "", "ana").ok()) << "paused already";
    EXPECT_FALSE(job_->act(pause, 0, "", "ana").ok()) << "an empty id is no id";
    commit();
    another();
    EXPECT_TRUE(job_->act(pause, 0, "q1", "ana").ok()) << "the next coordinator knows it too";
    EXPECT_FALSE(job_->act(pause, 0, "", "ana").ok());
}

TEST_F(JobCoordinatorTest, ARankThatIsBeingStartedIsToldThatTheJobEnds) {
    join("node0", 2);
    begin();
    ASSERT_EQ(starts(0, 1) + starts(1, 1), 2u) << "and no agent has said that they run";
    ASSERT_TRUE(job_->stop(false, "ana").ok());
    run();
    const auto signals = heard<SignalRank>("node0");
    ASSERT_THAT(signals, SizeIs(2));
    for (const SignalRank& s : signals) EXPECT_EQ(s.signal, SIGTERM);
}

TEST_F(JobCoordinatorTest, AJobThatIsStoppedSaysWhoStoppedItAndRefusesWhatComesLater) {
    train(2);
    ASSERT_TRUE(job_->stop(true, "ana").ok());
    ASSERT_THAT(all<model::OperatorActed>(), SizeIs(1));
    EXPECT_EQ(all<model::OperatorActed>()[0].action.kind, model::ActionKind::kStop);
    EXPECT_EQ(all<model::OperatorActed>()[0].by, "ana");
    EXPECT_EQ(job_->status().phase, model::JobPhase::kStopping);
    commit();
    bool asked = false;
    for (const int32_t r : {0, 1})
        for (const auto& c : told<protocol::Commit>(r)) {
            if (!c.checkpoint) continue;
            asked = true;
            rankSays(r, protocol::CheckpointDone{r, 1, c.record.step, 0, "/c/3", 1, 1, true, ""});
        }
    EXPECT_TRUE(asked);
    for (const int32_t r : {0, 1}) EXPECT_THAT(told<protocol::Leave>(r), IsEmpty());
    for (const int32_t r : {0, 1}) report(r, 3);
    for (const int32_t r : {0, 1}) {
        EXPECT_THAT(told<protocol::Leave>(r), SizeIs(1));
        agentSays(placed(r), gone(r, 0));
    }
    EXPECT_TRUE(job_->finished());
    const auto status = job_->status();
    EXPECT_EQ(status.phase, model::JobPhase::kFinished);
    EXPECT_THAT(all<model::RunFinished>(), SizeIs(1));
    const size_t events = events_.size();
    pass(3 * kSecond);
    ranks_.at({RankId{1, 0}, 1}).channel->close();
    pass(kSecond);
    EXPECT_EQ(events_.size(), events) << "nothing follows";
    EXPECT_TRUE(job_->stop(true, "ana").ok()) << "it has ended";
    EXPECT_THAT(connect(0).heard, SizeIs(1)) << "a rank that has missed it";
    EXPECT_THAT(told<protocol::Leave>(0), SizeIs(1));
}

// ---- another coordinator

TEST_F(JobCoordinatorTest, TheNextCoordinatorGoesOnWithWhatRunsAndTellsOfItOnlyOnce) {
    train(3);
    another();
    for (const int32_t r : {0, 1}) connect(r);
    pass(500 * kMillisecond);
    for (const int32_t r : {0, 1}) report(r, 3);
    pass(500 * kMillisecond);
    EXPECT_THAT(all<model::RankStarted>(), IsEmpty());
    EXPECT_THAT(all<model::RunStarted>(), IsEmpty());
    expectNobodyIsLost();
    EXPECT_EQ(starts(0, 2) + starts(1, 2), 0u);
    EXPECT_EQ(job_->status().term, 2u);
    commit();
    EXPECT_EQ(all<model::StepCommitted>().at(0).record.step, 4u);
}

TEST_F(JobCoordinatorTest, AnInventoryIsTakenWhenAgentsHaveToldAndNotBefore) {
    train(3);
    const std::string node = placed(1);
    const std::string other = placed(0);
    agents_.at(node).channel->close();
    agents_.at(node).channel = nullptr;
    run();
    if (node != other) {
        another();
        connect(0);
        pass(300 * kMillisecond);
        EXPECT_EQ(starts(1, 2), 0u) << "it may run there still";
        join(node, 2, {{process(1), pid(1)}});
        connect(1);
        pass(500 * kMillisecond);
        for (const int32_t r : {0, 1}) report(r, 3);
        pass(200 * kMillisecond);
        EXPECT_EQ(starts(1, 2), 0u);
        expectNobodyIsLost();
        commit();
    }
}

TEST_F(JobCoordinatorTest, AStopWaitsForRanksOfNodesWhoseAgentsAreAway) {
    train(3);
    const std::string node = placed(0);
    alone();
    ASSERT_TRUE(job_->stop(true, "ana").ok());
    pass(60 * kSecond);
    EXPECT_FALSE(job_->finished());
    EXPECT_EQ(job_->status().phase, model::JobPhase::kStopping);
    EXPECT_THAT(job_->status().why, HasSubstr("the agent of " + node + " is away"));
    join(node, 2, {{process(0), pid(0)}});
    connect(0);
    report(0, 3);
    bool asked = false;
    for (const auto& c : told<protocol::Commit>(0)) asked = asked || c.checkpoint;
    EXPECT_TRUE(asked) << job_->status().why;

    // Back, their agents know nothing of them.
    alone();
    pass(60 * kSecond);
    EXPECT_FALSE(job_->finished());
    for (const std::string name : {"node0", "node1"}) join(name, 2);
    pass(kSecond);
    EXPECT_TRUE(job_->finished()) << job_->status().why;
}

/// The run may have been given to somebody else by then.
TEST_F(JobCoordinatorTest, ALockThatIsTakenAwayStopsTheCoordinator) {
    train(2);
    pass(kSecond);
    EXPECT_EQ(job_->halted(), "");
    std::filesystem::remove(spec_.checkpointDir + "/controller.lock");
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (job_->halted().empty() && std::chrono::steady_clock::now() < end) {
        pass(kSecond);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_THAT(job_->halted(), HasSubstr("was removed, moved or replaced"));
    EXPECT_THAT(told<protocol::Leave>(0), IsEmpty()) << "ranks keep their state";
    job_.reset();
    EXPECT_TRUE(tryToBegin().ok()) << "nobody took it";
}

TEST_F(JobCoordinatorTest, AJobWaitsForCheckpointsThatAreAway) {
    protocol::LogLineage lineage;
    lineage.lineage = 1;
    lineage.ledger.highWater = {0};
    protocol::LogCheckpoint checkpoint;
    checkpoint.lineage = 1;
    checkpoint.ledger = lineage.ledger;
    const std::string folder = spec_.checkpointDir + "/" + checkpointFolder(1, 0, 0, 0, 1);
    checkpoint.path = folder + "/manifest.json";
    std::string log(protocol::kLogHeader);
    for (const protocol::LogEntry& entry :
         {protocol::LogEntry(protocol::LogTerm{1, std::string(32, 'a')}),
          protocol::LogEntry(lineage), protocol::LogEntry(checkpoint)})
        log += protocol::encodeEntry(entry);
    std::ofstream(dir_ + "/commit.log", std::ios::binary) << log;
    EXPECT_TRUE(absl::IsUnavailable(tryToBegin().status())) << tryToBegin().status();
    EXPECT_FALSE(std::filesystem::exists(spec_.checkpointDir)) << "it is to come back there";
    StateSnapshot state;
    state.lineage = 1;
    state.hash = bulkhead_state_hash(nullptr, 0);
    CheckpointManifest manifest;
    manifest.lineage = manifest.shards = 1;
    manifest.files.push_back(*writeShardFile(diskFiles(), folder, 0, state));
    ASSERT_TRUE(writeManifest(diskFiles(), folder, manifest).ok());
    join("node0");
    begin();
    pass(3 * kSecond);
    connect(0);
    std::filesystem::remove_all(folder);
    rankSays(0, protocol::CheckpointUnusable{0, 1, checkpoint.path, "no such file"});
    EXPECT_THAT(job_->halted(), HasSubstr("none of the run's checkpoints lies whole in its place"));
    EXPECT_FALSE(job_->status().why.find("damaged") != std::string::npos);
}

TEST_F(JobCoordinatorTest, ARunIsNotTakenUpUnderAnotherSecretOfTheController) {
    secretId_ = "one";
    train(3);
    past_ = job_->state();
    job_.reset();
    ranks_.clear();
    secretId_ = "another";
    const absl::Status refused = tryToBegin().status();
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--new-secret"));
    newSecret_ = true;
    EXPECT_TRUE(tryToBegin().ok());
    newSecret_ = false;
    EXPECT_FALSE(tryToBegin().ok()) << "nothing was begun with it yet";
    secretId_ = "one";
    EXPECT_TRUE(tryToBegin().ok());
}

TEST_F(JobCoordinatorTest, ARunWithCheckpointsAndNothingElseDoesNotBeginAnew) {
    const std::string folder = spec_.checkpointDir + "/" + checkpointFolder(1, 7, 0, 0, 1);
    StateSnapshot state;
    state.lineage = state.last.lineage = 1;
    state.step = state.last.step = 7;
    state.hash = bulkhead_state_hash(nullptr, 0);
    CheckpointManifest manifest;
    manifest.step = 7;
    manifest.lineage = manifest.shards = 1;
    manifest.last = state.last;
    manifest.jobJson = model::toJsonText(spec_);
    manifest.files.push_back(*writeShardFile(diskFiles(), folder, 0, state));
    const std::string path = *writeManifest(diskFiles(), folder, manifest);
    join("node0");
    const auto refused = tryToBegin();
    EXPECT_TRUE(absl::IsDataLoss(refused.status())) << refused.status();
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--resume " + path));
    EXPECT_FALSE(std::filesystem::exists(dir_ + "/id"));
}

/// Its program ended before it was told to history: the log has it.
TEST_F(JobCoordinatorTest, AStepThatHistoryDoesNotKnowIsToldByTheNextCoordinator) {
    train(2);
    const model::RunState before = job_->state();
    commit();
    past_ = before;
    job_.reset();
    ranks_.clear();
    events_.clear();
    begin();
    const auto told = all<model::StepCommitted>();
    ASSERT_THAT(told, SizeIs(1));
    EXPECT_EQ(told[0].record.step, 3u);
    EXPECT_EQ(told[0].replicas.size(), 2u);
}

// ---- faults

TEST_F(JobCoordinatorTest, AFaultIsPutOnceForOneRequestAndTookEffectWhenItsProcessIsGone) {
    train(2);
    model::FaultSpec kill;
    kill.kind = model::FaultKind::kKillReplica;
    kill.replica = 1;
    ASSERT_TRUE(job_->inject(kill, 0, "f1", "ana").ok());
    (void)job_->inject(kill, 0, "f1", "ana");
    run();
    EXPECT_THAT(signalsTo(1), ElementsAre(SIGKILL));
    EXPECT_THAT(all<model::FaultInjected>(), IsEmpty());
    agentSays(placed(1), gone(1, 0, SIGKILL));
    ASSERT_THAT(all<model::FaultInjected>(), SizeIs(1));
    EXPECT_EQ(all<model::FaultInjected>()[0].by, "ana");
    EXPECT_EQ(all<model::IncidentOpened>().at(0).fault, all<model::FaultInjected>()[0].fault);
}

TEST_F(JobCoordinatorTest, AFaultThatCannotBePutIsRefusedOrSaid) {
    train(2);
    model::FaultSpec nan;
    nan.kind = model::FaultKind::kNanGradient;
    nan.replica = 9;
    EXPECT_TRUE(absl::IsFailedPrecondition(job_->inject(nan, 0, "f0", "ana").status()));
    nan.replica = 1;
    const uint64_t revision = job_->status().revision;
    EXPECT_TRUE(absl::IsAborted(job_->inject(nan, revision + 1, "f1", "ana").status()));
    EXPECT_THAT(told<protocol::CommitFault>(1), IsEmpty());
    ASSERT_TRUE(job_->inject(nan, revision, "f1", "ana").ok());
    run();
    EXPECT_THAT(told<protocol::CommitFault>(1), SizeIs(1));
    EXPECT_TRUE(absl::IsAlreadyExists(job_->inject(nan, 0, "f1", "ana").status()));
    ranks_.at({RankId{1, 0}, 1}).channel->close();
    run();
    ASSERT_TRUE(job_->inject(nan, 0, "", "ana").ok());
    EXPECT_THAT(all<model::FaultEnded>().back().outcome, HasSubstr("r1s0 is not connected"));
    agentSays(placed(1), gone(1, 1));
    nan.kind = model::FaultKind::kKillReplica;
    (void)job_->inject(nan, 0, "", "ana");
    EXPECT_THAT(all<model::FaultEnded>().back().outcome, HasSubstr("r1s0 does not run"));
}

// ---- campaigns

class JobCampaignTest : public JobCoordinatorTest {
  protected:
    static model::CampaignText campaign(const std::string& faults) {
        model::CampaignText text;
        text.fileName = "c.toml";
        text.text = "duration = \"5s\"\nsettle = \"1s\"\nkeep_training = 1\n" + faults;
        return text;
    }
    static model::CampaignText flip() {
        return campaign("[[faults]]\nat = \"0s\"\nfault = \"flip-gradient:replica=1\"\n");
    }
    std::string refusal(const model::CampaignText& text) const {
        const auto check = job_->preflightCampaign(text);
        EXPECT_TRUE(check.ok()) << check.status();
        EXPECT_EQ(check->preflight.allowed, check->preflight.refusal.empty());
        return check->preflight.refusal;
    }
    void recover(const std::string& how) {
        model::Action policy;
        policy.kind = model::ActionKind::kSetPolicy;
        policy.policy = "recovery";
        policy.value = how;
        ASSERT_TRUE(job_->act(policy, 0, "", "ana").ok());
    }
    /// The verdict on the ledger of the campaign that has just ended.
    model::CampaignVerdict ledger() const {
        const model::CampaignEnded ended = all<model::CampaignEnded>().back();
        for (const auto& verdict : ended.verdicts)
            if (verdict.check == model::CampaignCheck::kLedger) return verdict;
        return {};
    }
};

TEST_F(JobCampaignTest, ItIsRefusedForWhatTheJobCannotBearAndBegunOnceForARequest) {
    train(2);
    model::CampaignText text = flip();
    EXPECT_FALSE(job_->preflightCampaign(campaign("nonsense")).ok());
    EXPECT_THAT(refusal(text), HasSubstr("it stays in the weights"));
    EXPECT_TRUE(absl::IsFailedPrecondition(job_->startCampaign(text, 0, "c1", "ana").status()));
    text.allowLasting = true;
    recover("restart_all");
    EXPECT_THAT(refusal(text), HasSubstr("every loss would stop it whole"));
    recover("ft");
    EXPECT_EQ(refusal(text), "");
    const uint64_t revision = job_->status().revision;
    EXPECT_TRUE(absl::IsAborted(job_->startCampaign(text, revision + 1, "c1", "ana").status()));
    EXPECT_THAT(all<model::CampaignStarted>(), IsEmpty());
    for (int i = 0; i < 2; ++i) EXPECT_EQ(*job_->startCampaign(text, revision, "c1", "ana"), 1u);
    EXPECT_THAT(all<model::CampaignStarted>(), SizeIs(1));
    EXPECT_THAT(refusal(text), HasSubstr("a campaign goes on in this job already"));
    EXPECT_FALSE(job_->startCampaign(text, 0, "", "ana").ok()) << "an empty id is no id";
    EXPECT_TRUE(absl::IsNotFound(job_->stopCampaign(2, "ana")));
    EXPECT_TRUE(job_->stopCampaign(1, "ana").ok());
    EXPECT_EQ(*job_->startCampaign(text, 0, "c2", "ana"), 2u);
    ASSERT_TRUE(job_->stop(false, "ana").ok());
    for (const int32_t r : {0, 1}) agentSays(placed(r), gone(r, 0));
    ASSERT_TRUE(job_->finished());
    EXPECT_THAT(refusal(text), HasSubstr("the job has ended"));
}

TEST_F(JobCampaignTest, ANodeThatIsLostIsNotHit) {
    train(2);
    const std::string node = placed(1);
    agents_.at(node).channel->close();
    agents_.at(node).channel = nullptr;
    pass(6 * kSecond);
    model::CampaignText text =
        campaign("[[rates]]\nevery = \"5s\"\nfault = \"kill-node:node=any\"\n");
    text.durationMs = 600'000;
    const auto check = job_->preflightCampaign(text);
    ASSERT_TRUE(check.ok()) << check.status();
    EXPECT_GT(check->campaign.plan.size(), 20u);
    for (const auto& fault : check->campaign.plan) EXPECT_EQ(fault.spec.node, placed(0));
}

TEST_F(JobCampaignTest, ItsEndLooksAtTheCommitLogAsItLiesOnDisk) {
    train(3);
    model::CampaignText text = flip();
    text.allowLasting = true;
    ASSERT_TRUE(job_->startCampaign(text, 0, "", "ana").ok());
    pass(7 * kSecond);
    ASSERT_THAT(all<model::CampaignEnded>(), SizeIs(1));
    EXPECT_EQ(ledger().state, model::VerdictState::kPassed) << ledger().words;
    EXPECT_THAT(ledger().words, HasSubstr("exactly once up to step 3"));
    const std::string log = dir_ + "/commit.log";
    const std::string whole = diskFiles().read(log).value();
    for (const bool there : {true, false}) {
        ASSERT_TRUE(job_->startCampaign(text, 0, "", "ana").ok());
        std::string damaged = whole;
        damaged[damaged.size() / 2] ^= 0x55;
        std::ofstream(log, std::ios::binary) << damaged;
        if (!there) std::filesystem::remove(log);
        pass(7 * kSecond);
        EXPECT_EQ(ledger().state, model::VerdictState::kFailed) << ledger().words;
    }
    EXPECT_THAT(all<model::CampaignEnded>(), SizeIs(3));
}

// ---- plans

TEST_F(JobCoordinatorTest, APlanIsProposedOnceAndAgainAfterItsCooldown) {
    spec_.plan.cooldownSteps = 3;
    std::atomic<int> asked = 0;
    uint64_t layout = 0;
    proposer_ = [&](const model::RunState&) -> ProposalTask {
        ++asked;
        return [layout] {
            model::PlanProposed plan;
            plan.layout = layout;
            return std::optional(plan);
        };
    };
    train(1);
    // It is made on a thread of its own, and asked for with every other sample of the fleet.
    const auto await = [&](const std::function<bool()>& done) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!done() && std::chrono::steady_clock::now() < end) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            pass(50 * kMillisecond);
        }
        return done();
    };
    ASSERT_TRUE(await([&] { return all<model::PlanProposed>().size() == 1; }));
    pass(3 * kSecond);
    EXPECT_EQ(asked, 1) << "the same step";
    commit();
    commit();
    pass(3 * kSecond);
    EXPECT_EQ(asked, 1);
    layout = 9;  // by now experts lie otherwise than the plan was made for
    commit();
    ASSERT_TRUE(await([&] { return asked == 2; }));
    for (int i = 0; i < 3; ++i) commit();
    ASSERT_TRUE(await([&] { return asked == 3; })) << "the one before has come to its end";
    EXPECT_THAT(all<model::PlanProposed>(), SizeIs(1));
}

}  // namespace
}  // namespace bulkhead::runtime
