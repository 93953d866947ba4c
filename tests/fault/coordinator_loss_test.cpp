// SPDX-License-Identifier: Apache-2.0
// kill -9 of the controller, a real process, at chosen moments and at random ones, under jobs of
// real workers: history has every step and every event once, and nobody who trains notices more
// than a pause.
#include <signal.h>

#include <random>
#include <set>
#include <thread>

#include "backend/history/run_store.h"
#include "tests/fault/job_test.h"
#include "tests/support/audit.h"
#include "tests/support/outside_controller.h"

namespace bulkhead::fault {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class CoordinatorLoss : public testing::Test {
  protected:
    static constexpr uint32_t kReplicas = 3;
    static constexpr uint32_t kShards = 2;
    virtual uint32_t nodes() const { return 1; }
    virtual uint32_t slotsPerNode() const { return 16; }

    void SetUp() override {
        support::JobHostOptions options;
        options.withController = false;
        options.nodes = nodes();
        options.slotsPerNode = slotsPerNode();
        host_ = std::make_unique<support::JobHost>(options);
        ASSERT_TRUE(host_->ready().ok()) << host_->ready();
        controller_ = std::make_unique<support::OutsideController>(
            host_->dir(), host_->socket(), "bulkhead-worker", host_->tape());
        ASSERT_THAT(controller_->start(), StartsWith("ok"));
    }
    /// BULKHEAD_TEST_TAPE names a file that gets every event that was told.
    void TearDown() override {
        if (const char* path = std::getenv("BULKHEAD_TEST_TAPE")) {
            std::ofstream tape(path);
            for (const model::Event& e : host_->tape().events(run_))
                tape << model::toJsonText(e) << "\n";
        }
        controller_.reset();
        host_.reset();
    }

    void startJob(model::JobSpec spec) {
        const std::string answer = controller_->ask("start " + model::toJsonText(spec));
        ASSERT_THAT(answer, StartsWith("ok ")) << answer;
        run_ = answer.substr(3);
    }
    model::JobSpec spec(uint64_t steps = 0) {
        model::JobSpec s = host_->tinySpec(kReplicas, kShards, steps);
        s.timeouts.beatMs = 20;
        // Nobody is late here, however busy the machine is: losses are kills.
        s.timeouts.heartbeatMs = s.timeouts.progressFloorMs = s.timeouts.chunkFloorMs = 20'000;
        return s;
    }
    void awaitState(const std::string& what,
                    const std::function<bool(const model::RunState&)>& reached) {
        const absl::Status s = host_->tape().awaitState(run_, what, reached, 120 * kSecond);
        ASSERT_TRUE(s.ok()) << s;
    }
    uint64_t step() const {
        const auto state = host_->tape().state(run_);
        return state.lastCommit ? state.lastCommit->record.step : 0;
    }
    void awaitStep(uint64_t step) {
        awaitState("step " + std::to_string(step), [step](const model::RunState& s) {
            return s.lastCommit && s.lastCommit->record.step >= step;
        });
    }
    void comeBack() {
        ++lives_;
        const std::string answer = controller_->start();
        ASSERT_THAT(answer, HasSubstr(run_)) << "it was not taken up again";
    }
    void dieAt(const std::string& point, int times) {
        const std::string answer = controller_->ask("crash " + point + " " + std::to_string(times));
        ASSERT_TRUE(answer == "ok" || answer.empty()) << answer;  // empty: it came there at once
    }
    /// Nothing else goes wrong: nobody restarts, nobody is lost.
    void expectTheNextGoesOn(const std::string& point, int times) {
        startJob(spec());
        awaitStep(5);
        dieAt(point, times);
        ASSERT_TRUE(controller_->awaitKilled());
        comeBack();
        awaitStep(step() + 8);
        finish();
        expectNoTrace();
        expectNobodyRestarted();
    }
    void finish() {
        model::Action stop;
        stop.kind = model::ActionKind::kStop;
        ASSERT_EQ(controller_->ask("act " + model::toJsonText(stop)), "ok");
        awaitEnd();
    }
    void awaitEnd() {
        awaitState("the end", [](const model::RunState& s) { return s.finished.has_value(); });
        EXPECT_TRUE(host_->tape().state(run_).finished->ok)
            << host_->tape().state(run_).finished->why;
        controller_->end();
    }
    template <class T>
    std::vector<T> all() const {
        std::vector<T> found;
        for (const model::Event& e : events_)
            if (const T* body = std::get_if<T>(&e.body)) found.push_back(*body);
        return found;
    }

    /// Checks the history, which must hold however often the controller died.
    void expectNoTrace() {
        auto reader = history::RunReader::open(host_->dir() + "/runs.db");
        ASSERT_TRUE(reader.ok()) << reader.status();
        const auto stored = (*reader)->findRun(run_);
        ASSERT_TRUE(stored.ok()) << stored.status();
        EXPECT_TRUE((*reader)->verify(stored->id).ok()) << (*reader)->verify(stored->id);
        history::EventFilter everything;
        everything.limit = UINT32_MAX;
        events_ = *(*reader)->events(stored->id, everything);
        EXPECT_THAT(support::auditRun(events_), IsEmpty());
        expectWhatWasTold();
        expectTiles();
        EXPECT_EQ(all<model::RunStarted>().size(), 1u);
        EXPECT_EQ(all<model::LineageOpened>().size(), 1u) << "somebody went back";
        EXPECT_EQ(all<model::RunFinished>().size(), 1u);
        EXPECT_THAT(all<model::StepsSuspect>(), IsEmpty());
        const auto commits = all<model::StepCommitted>();
        ASSERT_FALSE(commits.empty());
        EXPECT_EQ(commits.back().record.term, lives_);
        EXPECT_EQ(commits.size(), commits.back().record.step);
        for (const auto& c : commits) {
            EXPECT_GT(c.loss, 0) << "step " << c.record.step;
            EXPECT_EQ(c.shards.size(), kShards) << "step " << c.record.step;
        }
        std::set<std::pair<RankId, uint32_t>> started;
        for (const auto& e : all<model::RankStarted>())
            EXPECT_TRUE(started.insert({e.rank, e.incarnation}).second)
                << "r" << e.rank.replica << "s" << e.rank.shard << " started twice";
        std::map<uint64_t, std::string> open;
        for (const auto& e : all<model::IncidentOpened>()) open[e.incident] = e.title;
        for (const auto& e : all<model::IncidentClosed>()) open.erase(e.incident);
        EXPECT_THAT(open, IsEmpty()) << "incidents were left open";
    }
    /// Every step is in history once, though what happened between them may not be.
    void expectEveryStep() {
        auto reader = history::RunReader::open(host_->dir() + "/runs.db");
        ASSERT_TRUE(reader.ok()) << reader.status();
        const auto stored = (*reader)->findRun(run_);
        ASSERT_TRUE(stored.ok()) << stored.status();
        EXPECT_TRUE((*reader)->verify(stored->id).ok()) << (*reader)->verify(stored->id);
        EXPECT_EQ(stored->phase, "finished");
        const auto ledger = (*reader)->ledger(stored->id);
        ASSERT_TRUE(ledger.ok()) << ledger.status();
        for (size_t i = 0; i < ledger->size(); ++i) EXPECT_EQ((*ledger)[i].step, i + 1);
        EXPECT_EQ(ledger->size(), stored->lastStep);
        EXPECT_GT(ledger->size(), 6u);
    }
    std::vector<std::string> errors() const {
        std::vector<std::string> found;
        for (const model::Event& e : host_->tape().events(run_))
            if (const auto* phase = std::get_if<model::JobPhaseChanged>(&e.body);
                phase && e.severity == model::Severity::kError)
                found.push_back(phase->why);
        return found;
    }
    /// Nobody who watched was told of an event that is not what history has under its number.
    void expectWhatWasTold() {
        std::map<uint64_t, std::string> kept;
        for (const model::Event& e : events_) kept[e.seq] = model::toJsonText(e);
        for (const model::Event& e : host_->tape().events(run_)) {
            ASSERT_TRUE(kept.contains(e.seq)) << "history lost event " << e.seq;
            EXPECT_EQ(kept[e.seq], model::toJsonText(e));
        }
    }
    /// Samples of each domain are used from the first on, none left out.
    void expectTiles() {
        std::map<uint32_t, std::vector<SampleRange>> used;
        for (const auto& commit : all<model::StepCommitted>())
            for (const Contribution& c : commit.record.contributors)
                for (const SampleRange& r : c.ranges) used[r.domain].push_back(r);
        for (auto& [domain, ranges] : used) {
            std::sort(ranges.begin(), ranges.end());
            uint64_t at = 0;
            for (const SampleRange& r : ranges) {
                EXPECT_EQ(r.begin, at) << "domain " << domain << " has a hole or an overlap";
                at = r.end;
            }
        }
    }
    void expectNobodyRestarted() {
        EXPECT_EQ(all<model::RankStarted>().size(), kReplicas * kShards);
        EXPECT_THAT(losses(), IsEmpty());
    }
    /// Incidents of replicas; that the controller was lost is one of the job.
    std::vector<model::IncidentOpened> losses() const {
        auto opened = all<model::IncidentOpened>();
        std::erase_if(opened, [](const auto& e) {
            return e.cause == model::EvidenceKind::kControllerLost && e.replica < 0;
        });
        return opened;
    }
    static size_t losses(const model::RunState& s) {
        size_t n = 0;
        for (const model::IncidentView& incident : s.incidents) n += incident.replica >= 0;
        return n;
    }

    std::unique_ptr<support::JobHost> host_;
    std::unique_ptr<support::OutsideController> controller_;
    std::string run_;
    uint64_t lives_ = 1;
    std::vector<model::Event> events_;
};

struct Moment {
    const char* point;
    int times;
};
std::string nameOf(const testing::TestParamInfo<Moment>& info) {
    std::string name = std::string(info.param.point) + std::to_string(info.param.times);
    std::erase(name, '-');
    return name;
}

class AcrossNodes : public CoordinatorLoss {
  protected:
    uint32_t nodes() const override { return kReplicas * kShards; }
    uint32_t slotsPerNode() const override { return 1; }
};

TEST_F(AcrossNodes, ReplicasThatSpanNodesAreFoundAgain) {
    expectTheNextGoesOn("vote", 1);
    std::set<std::string> used;
    for (const auto& started : all<model::RankStarted>()) used.insert(started.node);
    EXPECT_EQ(used.size(), nodes());
}

class TwoNodes : public CoordinatorLoss {
  protected:
    uint32_t nodes() const override { return 2; }
};

TEST_F(TwoNodes, OneThatDiesTogetherWithTheControllerIsLostForTheNext) {
    model::JobSpec s = spec();
    s.timeouts.joinMs = 3000;
    startJob(s);
    awaitStep(5);
    controller_->killNow();
    host_->killAgent(1);
    for (const model::RankView& rank : host_->tape().state(run_).ranks)
        if (rank.node == support::JobHost::nodeName(1)) ::kill(rank.pid, SIGKILL);
    comeBack();
    awaitState("node1 is lost", [](const model::RunState& state) {
        return std::ranges::any_of(state.nodes, [](const model::NodeView& node) {
            return node.node == support::JobHost::nodeName(1) &&
                   node.state == model::NodeState::kLost;
        });
    });
    awaitState("all train", [](const model::RunState& state) {
        return state.lastCommit && state.lastCommit->record.contributors.size() == kReplicas;
    });
    awaitStep(step() + 3);
    finish();
    expectNoTrace();
}

class InAStep : public CoordinatorLoss, public testing::WithParamInterface<Moment> {};

TEST_P(InAStep, TheNextCoordinatorGoesOnAsIfNothingHadBeen) {
    expectTheNextGoesOn(GetParam().point, GetParam().times);
}
INSTANTIATE_TEST_SUITE_P(Moments, InAStep,
                         testing::Values(Moment{"phase-compute", 1}, Moment{"phase-exchange", 1},
                                         Moment{"quorum-to-one", 2}, Moment{"vote", 1},
                                         Moment{"vote", 3}, Moment{"append", 1},
                                         Moment{"durable", 1}, Moment{"commit-to-one", 1},
                                         Moment{"commit-to-one", 2}, Moment{"commits-sent", 1},
                                         Moment{"applying", 1}),
                         nameOf);

/// A replica was killed, and the coordinator dies while the others and it deal with that.
class InALoss : public CoordinatorLoss, public testing::WithParamInterface<Moment> {
  protected:
    /// Kills replica 1 until the coordinator dies of it; how often that was. A kill between two
    /// exchanges breaks none, and then nothing is exchanged or voted on again.
    uint64_t killUntilItDies() {
        for (uint64_t kills = 1;; ++kills) {
            controller_->tell("inject kill:replica=1");
            // Three steps after the replica's return: it may die of that, too.
            for (uint64_t back = UINT64_MAX; back == UINT64_MAX || step() < back + 3;) {
                if (controller_->gone(std::chrono::milliseconds(20))) return kills;
                if (back == UINT64_MAX && isBack(host_->tape().state(run_), kills)) back = step();
            }
            EXPECT_LT(kills, 10u) << "it lives on";
            if (kills == 10) return kills;
        }
    }
    static bool isBack(const model::RunState& s, uint64_t kills) {
        return losses(s) >= kills && s.counters.incidentsOpen == 0 && s.quorum &&
               s.quorum->contributors.size() == kReplicas;
    }
};

TEST_P(InALoss, TheIncidentClosesAndKeepsItsFault) {
    startJob(spec());
    awaitStep(5);
    dieAt(GetParam().point, GetParam().times);
    const uint64_t kills = killUntilItDies();
    ASSERT_TRUE(controller_->awaitKilled());
    comeBack();
    const uint64_t from = step();
    awaitState("the replica's return", [from, kills](const model::RunState& s) {
        return isBack(s, kills) && s.lastCommit && s.lastCommit->record.step >= from + 5;
    });
    finish();
    expectNoTrace();
    const auto opened = losses();
    const auto injected = all<model::FaultInjected>();
    const auto ended = all<model::FaultEnded>();
    std::string titles;
    for (const auto& incident : opened) titles += incident.title + "; ";
    ASSERT_EQ(opened.size(), kills) << titles;
    ASSERT_EQ(injected.size(), kills);
    ASSERT_EQ(ended.size(), kills);
    for (size_t i = 0; i < kills; ++i) {
        EXPECT_EQ(opened[i].replica, 1);
        EXPECT_EQ(opened[i].fault, injected[i].fault);
        EXPECT_EQ(ended[i].fault, injected[i].fault);
    }
    size_t exits = 0;  // of those that were killed
    for (const auto& e : all<model::RankExited>())
        exits += e.rank.replica == 1 && e.incarnation <= kills;
    EXPECT_EQ(exits, kills * kShards);
}
INSTANTIATE_TEST_SUITE_P(Moments, InALoss,
                         testing::Values(Moment{"exit-heard", 1}, Moment{"exit-heard", 2},
                                         Moment{"incident", 1}, Moment{"redo", 1},
                                         Moment{"redo", 2}, Moment{"vote-again", 1},
                                         Moment{"start", 1}, Moment{"fetching", 1},
                                         Moment{"following", 1}, Moment{"incident-closed", 1}),
                         nameOf);

TEST_F(CoordinatorLoss, TenKillsAtRandomMomentsLeaveNoTrace) {
    startJob(spec());
    awaitStep(3);
    std::mt19937 random(7);
    const char* points[] = {"phase-compute", "vote", "append", "durable", "commit-to-one"};
    for (int i = 0; i < 10; ++i) {
        dieAt(points[random() % 5], 1 + static_cast<int>(random() % 20));
        ASSERT_TRUE(controller_->awaitKilled()) << i;
        comeBack();
        awaitStep(step() + 1 + random() % 4);
    }
    awaitStep(step() + 8);
    finish();
    expectNoTrace();
    expectNobodyRestarted();
}

TEST_F(CoordinatorLoss, AnEndThatWasLoggedAndNotToldIsToldByTheNext) {
    startJob(spec(10));
    dieAt("finished", 1);
    ASSERT_TRUE(controller_->awaitKilled());
    controller_->start();
    awaitEnd();
    expectNoTrace();
    expectNobodyRestarted();
    EXPECT_EQ(step(), 10u);
    ASSERT_THAT(controller_->start(), StartsWith("ok"));
    controller_->end();
    expectNoTrace();  // and it is told once
}

TEST_F(CoordinatorLoss, AnotherRunOfThatNameInTheRunFileIsRefusedUntilTheFileIsMovedAway) {
    const std::string file = host_->dir() + "/runs.db";
    startJob(spec());
    awaitStep(3);
    controller_->killNow();
    for (const char* end : {"", "-wal", "-shm"})
        std::filesystem::rename(file + end, host_->dir() + "/ours.db" + end);
    history::WriterOptions options;
    options.uuid = "another";
    ASSERT_TRUE(history::RunWriter::create(file, run_, SystemClock(), options).ok());

    const std::string answer = controller_->start();
    EXPECT_THAT(answer, HasSubstr("its run " + run_ + " is another one (another, begun 20"));
    EXPECT_THAT(answer, HasSubstr("than the run in " + host_->dir() + "/state/" + run_));
    EXPECT_THAT(answer, HasSubstr("move this one away"));
    controller_->killNow();
    {
        auto reader = history::RunReader::open(file);
        ASSERT_TRUE(reader.ok()) << reader.status();
        EXPECT_EQ((*reader)->findRun(run_)->events, 0u) << "it was written into";
    }
    for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(file + end);
    comeBack();
    awaitStep(step() + 3);
    finish();
    expectEveryStep();
}

TEST_F(CoordinatorLoss, ARunFileThatIsRemovedUnderAJobIsWrittenAnewFromTheLog) {
    const std::string file = host_->dir() + "/runs.db";
    startJob(spec());
    awaitStep(3);
    const auto uuid = [&] {
        auto reader = history::RunReader::open(file);
        return reader.ok() ? (*reader)->findRun(run_).value_or(history::StoredRun{}).uuid : "";
    };
    const std::string before = uuid();
    for (const bool moved : {false, true}) {
        for (const char* end : {"", "-wal", "-shm"})
            if (moved)
                std::filesystem::rename(file + end, host_->dir() + "/moved.db" + end);
            else
                std::filesystem::remove(file + end);
        const size_t told = errors().size();
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (errors().size() == told && std::chrono::steady_clock::now() < limit)
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ASSERT_GT(errors().size(), told) << "nobody noticed";
        EXPECT_THAT(errors().back(), HasSubstr(file + ": was removed while it was written"));
        awaitStep(step() + 3);
        EXPECT_EQ(uuid(), before);
    }
    finish();
    expectEveryStep();
}

TEST_F(CoordinatorLoss, AFaultThatWaitsForItsStepStillHappens) {
    startJob(spec());
    awaitStep(3);
    const uint64_t due = step() + 25;
    ASSERT_THAT(controller_->ask("inject kill:replica=2@step=" + std::to_string(due)),
                StartsWith("ok "));
    controller_->killNow();
    comeBack();
    awaitState("the loss and the return", [](const model::RunState& s) {
        return losses(s) == 1 && s.counters.incidentsOpen == 0;
    });
    awaitStep(step() + 5);
    finish();
    expectNoTrace();
    const auto injected = all<model::FaultInjected>();
    ASSERT_EQ(injected.size(), 1u);
    EXPECT_GE(injected[0].step, due);
    EXPECT_EQ(losses().at(0).fault, injected[0].fault);
}

TEST_F(CoordinatorLoss, WhatTheOperatorWasToldIsDoneStaysDone) {
    startJob(spec());
    awaitStep(3);
    model::Action policy;
    policy.kind = model::ActionKind::kSetPolicy;
    policy.policy = "lr";
    policy.value = "linear";
    ASSERT_EQ(controller_->ask("act " + model::toJsonText(policy)), "ok");
    model::Action cordon;
    cordon.kind = model::ActionKind::kCordon;
    cordon.node = support::JobHost::nodeName(0);
    ASSERT_EQ(controller_->ask("act " + model::toJsonText(cordon)), "ok");
    controller_->killNow();
    comeBack();
    EXPECT_THAT(controller_->ask("policies"), HasSubstr("\"lr\":\"linear\""));
    awaitStep(step() + 3);
    // Ranks may be back before their agent is.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::string cordoned;
    while (cordoned.find(cordon.node) == std::string::npos &&
           std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        cordoned = controller_->ask("cordoned");
    }
    EXPECT_THAT(cordoned, HasSubstr(cordon.node));
    EXPECT_EQ(host_->tape().state(run_).policies.lr, model::LrPolicy::kLinear);
    finish();
    expectNoTrace();
}

/// Durable, and the coordinator dies before anybody is told: history must say so in the end.
TEST_F(CoordinatorLoss, AnOrderThatIsDurableAndWasNeverAnsweredIsToldByTheNext) {
    startJob(spec());
    awaitStep(3);
    dieAt("answer", 1);
    model::Action policy;
    policy.kind = model::ActionKind::kSetPolicy;
    policy.policy = "lr";
    policy.value = "none";
    controller_->tell("act " + model::toJsonText(policy));
    ASSERT_TRUE(controller_->awaitKilled());
    comeBack();
    EXPECT_THAT(controller_->ask("policies"), HasSubstr("\"lr\":\"none\""));
    awaitStep(step() + 3);
    finish();
    expectNoTrace();
    EXPECT_EQ(all<model::PoliciesChanged>().size(), 1u);
}

/// Each orphan writes its state and removes nobody's; the next coordinator finds what they wrote.
TEST_F(CoordinatorLoss, WhatRanksWroteWithoutACoordinatorIsWhereTheJobGoesOn) {
    model::JobSpec s = spec();
    s.timeouts.orphanMs = 3000;
    s.policies.checkpointEverySteps = 5;
    s.policies.checkpointsKept = 1;
    startJob(s);
    awaitStep(12);
    controller_->killNow();
    const uint64_t known = step();
    const auto ranks = host_->tape().state(run_).ranks;
    const auto gone = [&] {
        for (size_t i = 0; i < ranks.size(); ++i)
            if (::kill(ranks[i].pid, 0) == 0) return false;
        return true;
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!gone() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_TRUE(gone()) << "an orphan stays";
    comeBack();
    awaitStep(known + 5);
    finish();
    auto reader = history::RunReader::open(host_->dir() + "/runs.db");
    ASSERT_TRUE(reader.ok()) << reader.status();
    history::EventFilter everything;
    everything.limit = UINT32_MAX;
    events_ = *(*reader)->events((*reader)->findRun(run_)->id, everything);
    EXPECT_THAT(support::auditRun(events_), IsEmpty());
    const auto lineages = all<model::LineageOpened>();
    ASSERT_EQ(lineages.size(), 2u);
    EXPECT_GE(lineages[1].fromStep, known) << "a committed step was lost";
}

}  // namespace
}  // namespace bulkhead::fault
