// SPDX-License-Identifier: Apache-2.0
// The controller's recovery from losses, with ranks that are real processes.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "backend/common/codec.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/transport/control_channel.h"
#include "tests/coordinator/scripted_job.h"
#include "tests/support/held_at_exit.h"

namespace bulkhead::runtime {
namespace {

using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

class ControllerTest : public ScriptedJob {
  protected:
    /// The controller's answer to the first rank of a run; none: it closed the connection without
    /// a word.
    std::optional<protocol::ToReplica> answerTo(const std::string& run) {
        const std::string identity = rankIdentity(run, {0, 0}, 1);
        const Secret root = Secret::ofText(support::JobHost::kToken);
        ChannelOptions options;
        options.credential = {identity, root.derive("job " + run).derive(identity)};
        const SystemClock clock;
        const auto reactor = *Reactor::create(clock);
        std::unique_ptr<ControlChannel> channel;
        std::optional<protocol::ToReplica> answer;
        bool closed = false;
        const auto connector =
            connectControl(*reactor, host_->socket(), options, [&](auto connected) {
                if (!connected.ok()) return;
                channel = *std::move(connected);
                channel->start(
                    [&](std::string bytes) { answer = *decode<protocol::ToReplica>(bytes); },
                    [&](const absl::Status&) { closed = true; });
                protocol::Hello hello;
                hello.version = protocol::protocolVersion();
                hello.job = run;
                hello.endpoint.incarnation = 1;
                (void)channel->send(encode(protocol::ToCoordinator(hello)));
            });
        for (const MonoNs end = clock.now() + patience_; !closed && clock.now() < end;)
            reactor->runOnce(20 * kMillisecond);
        EXPECT_TRUE(closed);
        return answer;
    }
};

TEST_F(ControllerTest, RunsToItsLastStepAndEndsWithACheckpoint) {
    host();
    start(spec(30));
    expectFinishedWell();
    const auto commits = all<model::StepCommitted>();
    ASSERT_EQ(commits.size(), 30u);
    EXPECT_EQ(commits.back().record.contributors.size(), 4u);
    EXPECT_EQ(commits.back().shards.size(), 1u);
    EXPECT_EQ(commits.back().replicas.size(), 4u);
    EXPECT_FALSE(all<model::CheckpointWritten>().empty());
    EXPECT_EQ(all<model::ModelDescribed>().size(), 1u);
    EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty());
    EXPECT_FALSE(all<model::RankOutput>().empty());
}

TEST_F(ControllerTest, WhyAWorkerCannotRunTheJobIsTheEndsReasonWhateverItSaysAfterwards) {
    host();
    model::JobSpec s = spec(0, 1);
    s.workload = "hopeless";
    start(s);
    const auto finished = await<model::RunFinished>();
    ASSERT_TRUE(finished.has_value());
    EXPECT_FALSE(finished->ok);
    EXPECT_EQ(finished->why,
              "no replica can train: r0s0 cannot run this job: layers must be a whole number");
    const std::vector<protocol::LogEntry> log = commitLog();
    ASSERT_FALSE(log.empty());
    EXPECT_TRUE(std::holds_alternative<protocol::LogFinished>(log.back()));
}

TEST_F(ControllerTest, AReplicaThatCannotRunTheJobIsGivenUpAndTheOthersTrainOn) {
    host();
    model::JobSpec s = spec(0, 3);
    s.workload = "hopeless-1";
    start(s);
    const auto opened = await<model::IncidentOpened>();
    ASSERT_TRUE(opened.has_value());
    EXPECT_EQ(opened->title, "r1 lost: r1s0 cannot run this job: layers must be a whole number");
    const auto failed = await<model::ReplicaChanged>([](const model::ReplicaChanged& r) {
        return r.replica == 1 && r.state == model::ReplicaState::kFailed;
    });
    EXPECT_EQ(failed->why, "r1s0 cannot run this job: layers must be a whole number");
    awaitStep(10);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_EQ(all<model::RankStarted>().size(), 3u);
}

TEST_F(ControllerTest, TheReasonARankGivesOverItsLinkCountsHoweverLateItExits) {
    host();
    model::JobSpec s = spec(0, 2);
    s.workload = "hopeless-linked";
    start(s);
    const auto finished = await<model::RunFinished>();
    ASSERT_TRUE(finished.has_value());
    EXPECT_FALSE(finished->ok);
    EXPECT_THAT(finished->why, HasSubstr("cannot run this job: the model does not fit"));
    for (const auto& opened : all<model::IncidentOpened>())
        EXPECT_THAT(opened.title, HasSubstr("the model does not fit"));
    EXPECT_LE(all<model::RankStarted>().size(), 2u);  // found in the first round
}

TEST_F(ControllerTest, MoreMembersThanAnExchangeTakesAreRefusedBeforeAnythingStarts) {
    host();
    const auto refused = host_->controller().start(spec(0, 65), {"too-many", ""});
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr("replicas + spares: at most 64"));
    EXPECT_FALSE(std::filesystem::exists(host_->dir() + "/state/too-many"));
}

TEST_F(ControllerTest, AKilledReplicaComesBackAndItsIncidentNamesTheFault) {
    host();
    start(spec(0));
    const uint64_t fault = inject(model::FaultKind::kKillReplica, 2, 10);
    const auto injected = await<model::FaultInjected>();
    EXPECT_EQ(injected->fault, fault);
    const auto opened = await<model::IncidentOpened>();
    EXPECT_EQ(opened->replica, 2);
    EXPECT_EQ(opened->fault, fault);
    EXPECT_EQ(opened->cause, model::EvidenceKind::kProcessExit);
    const auto closed = await<model::IncidentClosed>();
    EXPECT_THAT(closed->outcome, HasSubstr("rejoined"));
    EXPECT_GT(closed->rejoinMs, 0);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_EQ(all<model::RankStarted>().size(), 5u);
}

TEST_F(ControllerTest, TheJobFilesOwnFaultsHappenAtTheirSteps) {
    host();
    model::JobSpec s = spec(0);
    s.faults = {"kill:replica=2@step=8", "nan:replica=0@step=6"};
    start(s);
    await<model::FaultInjected>([](const model::FaultInjected& f) {
        return f.spec.kind == model::FaultKind::kKillReplica;
    });
    EXPECT_EQ(await<model::IncidentOpened>()->replica, 2);
    await<model::IncidentClosed>();
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_EQ(all<model::FaultInjected>().size(), 2u);
    s.faults = {"explode:replica=2"};
    EXPECT_TRUE(absl::IsInvalidArgument(host_->controller().start(s, {}).status()));
}

TEST_F(ControllerTest, AHungReplicaIsFoundByItsMissingHeartbeat) {
    host();
    start(spec(0));
    awaitStep(5);
    inject(model::FaultKind::kHang, 1);
    const auto opened = await<model::IncidentOpened>();
    EXPECT_EQ(opened->replica, 1);
    EXPECT_EQ(opened->cause, model::EvidenceKind::kMissedHeartbeat);
    const auto closed = await<model::IncidentClosed>();
    EXPECT_THAT(closed->outcome, HasSubstr("rejoined"));
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
}

TEST_F(ControllerTest, AFlippedParameterIsFoundByParity) {
    host();
    start(spec(0));
    awaitStep(5);
    inject(model::FaultKind::kFlipParameter, 3);
    const auto opened = await<model::IncidentOpened>();
    EXPECT_EQ(opened->replica, 3);
    EXPECT_EQ(opened->cause, model::EvidenceKind::kParityMismatch);
    EXPECT_NE(opened->fault, 0u);
    const auto closed = await<model::IncidentClosed>();
    EXPECT_THAT(closed->outcome, HasSubstr("rejoined"));
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    await<model::RunFinished>();
}

TEST_F(ControllerTest, ANotFiniteGradientIsComputedAgainAndNobodyIsExpelled) {
    host();
    start(spec(0));
    awaitStep(5);
    inject(model::FaultKind::kNanGradient, 0);
    const auto evidence = await<model::EvidenceSeen>();
    EXPECT_EQ(evidence->kind, model::EvidenceKind::kNonFinite);
    awaitStep(20);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_EQ(all<model::RankStarted>().size(), 4u);
}

TEST_F(ControllerTest, ALostNodesReplicaIsStartedOnAnother) {
    host(4);
    start(spec(0));
    awaitStep(5);
    model::FaultSpec fault;
    fault.kind = model::FaultKind::kKillNode;
    fault.node = "node3";
    ASSERT_TRUE(host_->controller().inject(run_, fault, 0, "", "test").ok());
    const auto opened = await<model::IncidentOpened>();
    EXPECT_EQ(opened->replica, 3);
    EXPECT_NE(opened->fault, 0u);
    const auto closed = await<model::IncidentClosed>();
    EXPECT_THAT(closed->outcome, HasSubstr("rejoined"));
    await<model::NodeChanged>([](const model::NodeChanged& n) {
        return n.node == "node3" && n.state == model::NodeState::kLost;
    });
    EXPECT_NE(all<model::RankStarted>().back().node, "node3");
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
}

TEST_F(ControllerTest, AnAgentThatDiesAndReturnsCostsNothing) {
    host();
    start(spec(0));
    awaitStep(5);
    host_->killAgent(0);
    host_->startAgent(0);
    awaitStep(all<model::StepCommitted>().back().record.step + 50);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty());
    EXPECT_EQ(all<model::RankStarted>().size(), 4u);
}

TEST_F(ControllerTest, ALostControllerLosesNoStepAndKeepsTheRanks) {
    host();
    start(spec(0));
    awaitStep(20);
    host_->loseController();
    const uint64_t last = all<model::StepCommitted>().back().record.step;
    const auto runs = host_->comeBack();
    ASSERT_TRUE(runs.ok()) << runs.status();
    EXPECT_THAT(*runs, testing::ElementsAre(run_));
    awaitStep(last + 20);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    const auto started = all<model::RankStarted>();
    for (const model::RankStarted& s : started) EXPECT_EQ(s.incarnation, 1u) << "it was restarted";
    for (const model::LineageOpened& l : all<model::LineageOpened>())
        EXPECT_EQ(l.lineage, 1u) << "no rollback was needed\n" << lastEvents();
}

TEST_F(ControllerTest, WhatAnAgentTellsBeforeTheJobIsTakenUpAgainIsNotLost) {
    host();
    start(spec(0));
    awaitStep(5);
    const model::RankStarted victim = all<model::RankStarted>().front();
    host_->loseController();
    const auto awaitRanks = [&](uint32_t ranks) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        const auto there = [&] {
            const std::vector<NodeStatus> nodes = host_->controller().nodes();
            return !nodes.empty() && nodes.front().used == ranks;
        };
        while (!there()) {
            ASSERT_LT(std::chrono::steady_clock::now(), end) << "not " << ranks << " ranks";
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    };
    const auto runs = host_->comeBack([&] {
        awaitRanks(4);
        ASSERT_EQ(::kill(victim.pid, SIGKILL), 0);
        awaitRanks(3);
    });
    ASSERT_TRUE(runs.ok()) << runs.status();
    await<model::IncidentClosed>();
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    const auto exits = all<model::RankExited>();
    ASSERT_FALSE(exits.empty());
    EXPECT_EQ(exits.front().pid, victim.pid);
    EXPECT_EQ(exits.front().signal, SIGKILL);
}

TEST_F(ControllerTest, ARankIsLostWhenItDiesAndStartedAgainWhenItIsGone) {
    host();
    start(spec(0));
    awaitStep(5);
    const model::RankStarted victim = all<model::RankStarted>().front();
    const auto used = [this] { return host_->controller().nodes().front().used; };
    const uint32_t ranks = used();
    support::HeldAtExit held(victim.pid);
    ASSERT_EQ(::kill(victim.pid, SIGKILL), 0);
    ASSERT_TRUE(held.awaitDeath());
    const auto opened = await<model::IncidentOpened>();
    ASSERT_TRUE(opened.has_value());
    EXPECT_EQ(opened->cause, model::EvidenceKind::kProcessExit);
    // The next incarnation is due, and waits; the others train.
    await<model::ReplicaChanged>([&](const model::ReplicaChanged& r) {
        return r.replica == victim.rank.replica && r.incarnation == 2 &&
               r.state == model::ReplicaState::kStarting;
    });
    awaitStep(all<model::StepCommitted>().back().record.step + 5);
    EXPECT_EQ(used(), ranks);
    EXPECT_THAT(all<model::RankExited>(), IsEmpty()) << "it is not gone";

    held.release();
    const auto exited = await<model::RankExited>();
    ASSERT_TRUE(exited.has_value());
    EXPECT_EQ(exited->pid, victim.pid);
    EXPECT_EQ(exited->signal, SIGKILL);
    await<model::RankStarted>(
        [&](const model::RankStarted& s) { return s.rank == victim.rank && s.incarnation == 2; });
    await<model::IncidentClosed>();
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_EQ(all<model::IncidentOpened>().size(), 1u);
    EXPECT_THAT(all<model::EvidenceSeen>(),
                Contains(Field(&model::EvidenceSeen::detail, HasSubstr("ended on signal 9"))));
}

TEST_F(ControllerTest, WhoWaitsForADeadProcessStartsElsewhereWhenItsAgentGoes) {
    host(2);
    start(spec(0));
    awaitStep(5);
    const model::RankStarted victim = all<model::RankStarted>().front();
    support::HeldAtExit held(victim.pid);
    ASSERT_EQ(::kill(victim.pid, SIGKILL), 0);
    ASSERT_TRUE(held.awaitDeath());
    await<model::ReplicaChanged>([&](const model::ReplicaChanged& r) {
        return r.incarnation == 2 && r.state == model::ReplicaState::kStarting;
    });
    host_->killAgent(victim.node == support::JobHost::nodeName(0) ? 0 : 1);
    const auto started = await<model::RankStarted>(
        [&](const model::RankStarted& s) { return s.rank == victim.rank && s.incarnation > 1; });
    ASSERT_TRUE(started.has_value());
    EXPECT_EQ(started->incarnation, 2u) << "it waited until the node was given up";
    EXPECT_NE(started->node, victim.node);
}

TEST_F(ControllerTest, KilledWholeItResumesFromTheCheckpointWithExactlyOnceData) {
    host();
    start(spec(0));
    await<model::CheckpointWritten>([](const model::CheckpointWritten& c) { return c.step >= 20; });
    host_->killEverything();
    const auto runs = host_->comeBack();
    ASSERT_TRUE(runs.ok()) << runs.status();
    const auto lineage =
        await<model::LineageOpened>([](const model::LineageOpened& l) { return l.lineage > 1; });
    ASSERT_TRUE(lineage.has_value());
    EXPECT_GE(lineage->fromStep, 20u);
    awaitStep(lineage->fromStep + 20);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
}

TEST_F(ControllerTest, ARunWhoseFolderIsAwayIsWaitedForUntilItIsBackOrGivenUp) {
    host();
    start(spec(0));
    await<model::CheckpointWritten>([](const model::CheckpointWritten& c) { return c.step >= 20; });
    const std::string home = host_->dir() + "/state/" + run_, away = host_->dir() + "/away";
    const auto comesBackWithoutIt = [&] {
        host_->killEverything();
        std::filesystem::rename(home, away);
        EXPECT_FALSE(host_->comeBack({}, {run_}).ok());
        const auto jobs = host_->controller().list();
        ASSERT_THAT(jobs, testing::SizeIs(1));
        EXPECT_EQ(jobs[0].phase, model::JobPhase::kWaiting);
        EXPECT_GE(jobs[0].step, 20u);
        EXPECT_THAT(jobs[0].why, HasSubstr(home + " is not there"));
        struct Seen : Watcher {
            model::RunState state;
            void onSnapshot(const model::RunState& now) override { state = now; }
            void onEvent(const model::Event&) override {}
        } seen;
        ASSERT_TRUE(host_->controller().watch(run_, &seen).ok());
        host_->controller().unwatch(run_, &seen);
        EXPECT_EQ(seen.state.phase, model::JobPhase::kWaiting);
        EXPECT_EQ(seen.state.explanation, jobs[0].why);
        for (const model::ReplicaView& replica : seen.state.replicas)
            EXPECT_EQ(replica.state, model::ReplicaState::kAbsent);
        model::Action drain;
        drain.kind = model::ActionKind::kDrain;
        drain.replica = 1;
        const auto drained = host_->controller().preflight(run_, drain);
        ASSERT_TRUE(drained.ok()) << drained.status();
        EXPECT_EQ(drained->refusal, jobs[0].why);
    };
    comesBackWithoutIt();
    EXPECT_FALSE(answerTo(run_).has_value()) << "it holds its state, and comes again";
    const auto refused = answerTo("nothing");
    ASSERT_TRUE(refused.has_value());
    EXPECT_THAT(std::get<protocol::Expelled>(*refused).why, HasSubstr("no job is named"));
    const int asked = host_->historyAsked();
    std::filesystem::rename(away, home);
    const auto lineage =
        await<model::LineageOpened>([](const model::LineageOpened& l) { return l.lineage > 1; });
    ASSERT_TRUE(lineage.has_value());
    EXPECT_GE(lineage->fromStep, 20u);
    EXPECT_EQ(host_->historyAsked(), asked + 1) << "the folder tells which run's history it is";
    awaitStep(lineage->fromStep + 20);
    comesBackWithoutIt();
    ASSERT_TRUE(act(model::ActionKind::kStopNow).ok());
    EXPECT_THAT(host_->controller().list(), IsEmpty());
    const auto end = await<model::RunFinished>();
    ASSERT_TRUE(end.has_value());
    EXPECT_THAT(end->why, HasSubstr("its folder is gone"));
}

/// Killed between its row in history and its log: nothing was trained, nothing can come back.
class CutOffStart : public ControllerTest, public testing::WithParamInterface<const char*> {};

TEST_P(CutOffStart, EndsWithTheNextController) {
    host();
    host_->killEverything();
    run_ = "cut";
    if (const std::string made = GetParam(); !made.empty())
        std::filesystem::create_directories(host_->dir() + "/state/" + run_ + made);
    ASSERT_TRUE(host_->comeBack().ok());
    const auto unreadable = [](const std::string&) { return absl::UnavailableError("locked"); };
    EXPECT_FALSE(host_->controller().recover(unreadable, {run_}).ok());
    ASSERT_THAT(host_->controller().list(), testing::SizeIs(1)) << "it may have trained";
    EXPECT_EQ(host_->controller().list()[0].phase, model::JobPhase::kWaiting);
    host_->controller().shutDown();
    EXPECT_FALSE(host_->controller().isEnding()) << "there is nothing of it to wait for";
    host_->killEverything();
    const auto runs = host_->comeBack({}, {run_});
    ASSERT_TRUE(runs.ok()) << runs.status();
    EXPECT_THAT(*runs, IsEmpty());
    EXPECT_THAT(host_->controller().list(), IsEmpty());
    const auto end = await<model::RunFinished>();
    ASSERT_TRUE(end.has_value());
    EXPECT_FALSE(end->ok);
    EXPECT_THAT(end->why, HasSubstr("was cut off"));
}
INSTANTIATE_TEST_SUITE_P(Made, CutOffStart, testing::Values("", "/", "/text"),
                         [](const auto& info) { return "Step" + std::to_string(info.index); });

/// Before its first checkpoint too: what a refused resume makes is nothing.
TEST_F(ControllerTest, ARunThatTrainsIsNotResumedWhateverItHas) {
    host();
    start(spec(0));
    awaitStep(2);
    const absl::Status refused = host_->controller().canResume(run_, spec(0)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("has not ended, it is at step "));
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
}

TEST_F(ControllerTest, HistoryHasWhatTheLogHasOfARunThatIsNotTakenUp) {
    host();
    model::JobSpec job = spec(0);
    job.policies.checkpointEverySteps = 1000;
    start(job);
    awaitStep(12);
    host_->killEverything();
    // The history was not written for some steps, and the job is lost.
    for (const model::Event& e : host_->tape().events(run_))
        if (const auto* c = std::get_if<model::StepCommitted>(&e.body); c && c->record.step == 6)
            host_->tape().forget(run_, e.seq);
    std::filesystem::remove(host_->dir() + "/state/" + run_ + "/job.json");
    EXPECT_FALSE(host_->comeBack().ok());
    std::vector<std::string> told, logged;
    for (const auto& commit : all<model::StepCommitted>()) told.push_back(commit.link);
    for (const protocol::LogEntry& entry : commitLog())
        if (const auto* c = std::get_if<protocol::LogCommit>(&entry)) logged.push_back(c->link);
    EXPECT_GE(logged.size(), 12u);
    EXPECT_EQ(told, logged);
    EXPECT_THAT(support::auditRun(host_->tape().events(run_)), IsEmpty());
}

/// A resumed run would give up the state that live ranks hold.
TEST_F(ControllerTest, ARunWhoseRanksLiveIsNotResumedUntilTheyHaveEnded) {
    host();
    start(spec(0));
    await<model::CheckpointWritten>([](const model::CheckpointWritten& c) { return c.step >= 20; });
    host_->loseController();
    const std::string log = host_->dir() + "/state/" + run_ + "/commit.log";
    {
        std::fstream file(log, std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(log) / 2));
        file.put('\xee').put('\xee').put('\xee');
    }
    EXPECT_FALSE(host_->comeBack().ok());
    const auto why = [&] { return host_->controller().list().at(0).why; };
    for (int i = 0; i < 1000 && why().find("of its ranks run") == std::string::npos; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_THAT(why(), HasSubstr("4 of its ranks run"));
    const auto resumed = host_->controller().start(spec(40), {"", run_});
    EXPECT_TRUE(absl::IsFailedPrecondition(resumed.status())) << resumed.status();
    EXPECT_THAT(std::string(resumed.status().message()), HasSubstr("4 of its ranks run"));
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    for (int i = 0; i < 1000 && why().find("of its ranks run") != std::string::npos; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_THAT(why(), HasSubstr("its last whole checkpoint is of step"));
    EXPECT_EQ(host_->controller().status(run_)->phase, model::JobPhase::kFailed);
    const auto again = host_->controller().start(spec(60), {"", run_});
    ASSERT_TRUE(again.ok()) << again.status();
    const auto end = await<model::RunFinished>();
    ASSERT_TRUE(end.has_value());
    EXPECT_FALSE(end->ok);
    EXPECT_EQ(end->why, "run " + *again + " goes on from its checkpoint");
}

TEST_F(ControllerTest, ARefusedStartUsesUpNoNameAndLeavesNoFolder) {
    host();
    model::JobSpec job = spec(5);
    job.domains = {{"verse", {host_->dir() + "/none.txt"}}};
    job.dataCopyBytes = 1 << 20;
    const auto refused = host_->controller().start(job, {});
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("none.txt"));
    const std::filesystem::path state = host_->dir() + "/state";
    for (const auto& entry : std::filesystem::directory_iterator(state))
        EXPECT_FALSE(entry.is_directory()) << entry.path();
}

TEST_F(ControllerTest, ANewRunGoesOnFromTheCheckpointOfAnEarlierOne) {
    host();
    start(spec(25));
    expectFinishedWell();
    const std::string earlier = run_;
    const auto last = all<model::StepCommitted>().back();
    start(spec(40), earlier);
    EXPECT_THAT(await<model::RunStarted>()->resumedFrom, HasSubstr("checkpoint-25"));
    const auto first = await<model::StepCommitted>();
    EXPECT_EQ(first->record.step, 26u);
    EXPECT_GE(first->record.contributors[0].ranges[0].begin,
              last.record.contributors[0].ranges[0].end);
    await<model::RunFinished>();
    EXPECT_TRUE(absl::IsNotFound(host_->controller().start(spec(5), {"", "nothing"}).status()));
}

TEST_F(ControllerTest, JobsThatNameTheSameCheckpointFolderKeepOutOfEachOthersWay) {
    host();
    model::JobSpec s = spec(20, 2);
    s.checkpointDir = host_->dir() + "/shared";
    start(s);
    const std::string first = run_;
    start(s);
    const auto folder = [&](const std::string& run) {
        return host_->controller().status(run)->spec.checkpointDir;
    };
    EXPECT_NE(folder(first), folder(run_));
    for (const std::string& run : {first, run_})
        EXPECT_THAT(folder(run), testing::StartsWith(s.checkpointDir + "/"));
    // Another controller's run of the same name.
    std::filesystem::create_directories(s.checkpointDir + "/taken/l0001-step000000010-layout0-r0");
    const auto taken = host_->controller().start(s, {"taken", ""});
    EXPECT_TRUE(absl::IsInvalidArgument(taken.status()));
    EXPECT_THAT(std::string(taken.status().message()), HasSubstr("checkpoint_dir"));
    EXPECT_FALSE(std::filesystem::exists(host_->dir() + "/state/taken"));
}

TEST_F(ControllerTest, SeveralJobsShareTheNodes) {
    host();
    start(spec(40, 2));
    const std::string first = run_;
    start(spec(40, 3));
    EXPECT_NE(run_, first);
    expectFinishedWell();
    run_ = first;
    at_ = 0;
    expectFinishedWell();
    EXPECT_EQ(host_->controller().list().size(), 2u);
}

TEST_F(ControllerTest, AWorkerThatCannotBeStartedIsNamed) {
    host();
    support::JobHostOptions options;
    options.worker = "no-such-worker";
    host_ = std::make_unique<support::JobHost>(options);
    model::JobSpec s = spec(10, 1);
    s.policies.restartLimit = 2;
    start(s);
    const auto failed = await<model::ReplicaChanged>(
        [](const model::ReplicaChanged& r) { return r.state == model::ReplicaState::kFailed; });
    ASSERT_TRUE(failed.has_value());
    EXPECT_THAT(lastEvents(), HasSubstr("no-such-worker"));
}

}  // namespace
}  // namespace bulkhead::runtime
