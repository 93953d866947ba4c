// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/campaign_runner.h"

#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "backend/common/clock.h"
#include "backend/model/run_state.h"

namespace bulkhead::runtime {
namespace {

using model::CampaignOutcome;
using model::FaultKind;
using model::ReplicaState;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A job of four replicas that is nothing but its events, on a clock of the test.
class CampaignRunnerTest : public testing::Test {
  protected:
    static constexpr int64_t kBegin = 1'700'000'000'000'000'000;

    CampaignRunnerTest() {
        model::RunStarted run;
        run.spec.replicas = 4;
        run.spec.shards = 2;
        emit(run);
        emit(model::JobPhaseChanged{model::JobPhase::kTraining, ""});
        for (int32_t r = 0; r < 4; ++r) is(r, ReplicaState::kTraining);
        runner_ = std::make_unique<CampaignRunner>(hands());
    }

    CampaignRunner::Hands hands() {
        CampaignRunner::Hands h;
        h.inject = [this](const model::FaultSpec& spec, const std::string& by,
                          const std::string&) -> absl::StatusOr<uint64_t> {
            const uint64_t id = ++faults_;
            if (!refusal_.empty()) {
                emit(model::FaultEnded{id, refusal_});
                return id;
            }
            emit(model::FaultInjected{id, spec, 1, by});
            if (!lasts_) emit(model::FaultEnded{id, "done"});
            return id;
        };
        h.endFault = [this](uint64_t fault) {
            asked_.push_back(fault);
            emit(model::FaultEnded{fault, "ended on request"});
            return absl::OkStatus();
        };
        h.preflight = [this](const model::FaultSpec& spec) {
            model::Preflight p;
            p.contributorsBefore = training();
            const auto* r = model::findReplica(state_, spec.replica);
            p.contributorsAfter =
                p.contributorsBefore - (r->state == ReplicaState::kTraining ? 1 : 0);
            return p;
        };
        h.ledger = [this] { return ledger_; };
        h.emit = [this](model::EventBody body, model::Severity) { emit(std::move(body)); };
        h.unixNs = [this] { return now_; };
        h.state = [this]() -> const model::RunState& { return state_; };
        return h;
    }

    void emit(model::EventBody body) {
        const model::Event event{++seq_, now_, model::Severity::kInfo, std::move(body)};
        model::apply(state_, event);
        if (runner_) runner_->observe(event);
    }
    void is(int32_t replica, ReplicaState state, uint32_t incarnation = 1) {
        model::ReplicaChanged change;
        change.replica = replica;
        change.incarnation = incarnation;
        change.state = state;
        emit(change);
    }
    uint32_t training() const {
        uint32_t n = 0;
        for (const auto& r : state_.replicas) n += r.state == ReplicaState::kTraining;
        return n;
    }
    /// Tenths of a second, the runner awake at each.
    void pass(double seconds) {
        for (int i = 0; i < static_cast<int>(seconds * 10); ++i) {
            now_ += kSecond / 10;
            runner_->tick();
        }
    }
    static model::FaultSpec fault(FaultKind kind, int32_t replica) {
        model::FaultSpec spec;
        spec.kind = kind;
        spec.replica = replica;
        return spec;
    }
    static model::CampaignStarted plan(std::vector<model::PlannedFault> faults) {
        model::CampaignStarted c;
        c.name = "test";
        c.durationMs = 30'000;
        c.settleMs = 10'000;
        c.keepTraining = 3;
        c.criteria.minInjected = 1;
        c.plan = std::move(faults);
        c.by = "anna";
        return c;
    }
    const model::CampaignView& view() const { return state_.campaigns.back(); }
    CampaignOutcome outcome() const {
        EXPECT_TRUE(view().ended.has_value());
        return view().ended ? view().ended->outcome : CampaignOutcome::kCutOff;
    }
    std::vector<FaultKind> injected() const {
        std::vector<FaultKind> kinds;
        for (const auto& f : state_.faults) kinds.push_back(f.spec.kind);
        return kinds;
    }

    int64_t now_ = kBegin;
    uint64_t seq_ = 0;
    uint64_t faults_ = 0;
    bool lasts_ = false;
    std::string refusal_;
    campaign::LedgerFinding ledger_{true, "tiles"};
    std::vector<uint64_t> asked_;
    model::RunState state_;
    std::unique_ptr<CampaignRunner> runner_;
};

TEST_F(CampaignRunnerTest, putsEachFaultWhenItsTimeHasComeAndPasses) {
    ASSERT_TRUE(runner_
                    ->start(plan({{1000, fault(FaultKind::kNanGradient, 1)},
                                  {5000, fault(FaultKind::kSlow, 2)}}))
                    .ok());
    pass(0.9);
    EXPECT_THAT(injected(), IsEmpty());
    pass(0.2);
    EXPECT_THAT(injected(), ElementsAre(FaultKind::kNanGradient));
    EXPECT_EQ(state_.faults.back().by, "campaign 1, fault 1");
    pass(29);
    EXPECT_THAT(injected(), ElementsAre(FaultKind::kNanGradient, FaultKind::kSlow));
    EXPECT_EQ(outcome(), CampaignOutcome::kPassed);
    EXPECT_FALSE(runner_->active());
}

TEST_F(CampaignRunnerTest, oneAtATime) {
    ASSERT_TRUE(runner_->start(plan({{1000, fault(FaultKind::kSlow, 2)}})).ok());
    const auto second = runner_->start(plan({{1000, fault(FaultKind::kSlow, 2)}}));
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("campaign 1 (test)"));
}

TEST_F(CampaignRunnerTest, aLossThatTooFewWouldSurviveWaitsAndComesWhenTheyCanBearIt) {
    ASSERT_TRUE(runner_
                    ->start(plan({{1000, fault(FaultKind::kKillReplica, 1)},
                                  {1000, fault(FaultKind::kKillReplica, 2)}}))
                    .ok());
    pass(2);
    // Replica 1 trains still, as far as anybody knows, but it has been dealt its loss.
    EXPECT_EQ(state_.faults.size(), 1u);
    is(1, ReplicaState::kStarting, 2);
    pass(5);
    EXPECT_EQ(state_.faults.size(), 1u);
    is(1, ReplicaState::kTraining, 2);
    pass(0.2);
    ASSERT_EQ(state_.faults.size(), 2u);
    EXPECT_EQ(state_.faults.back().spec.replica, 2);
}

TEST_F(CampaignRunnerTest, whoHasBeenDealtItsLossIsNotHitAgainBeforeItIsBack) {
    auto slow = fault(FaultKind::kSlow, 1);
    ASSERT_TRUE(
        runner_->start(plan({{1000, fault(FaultKind::kKillReplica, 1)}, {1000, slow}})).ok());
    pass(2);
    EXPECT_EQ(state_.faults.size(), 1u);
    is(1, ReplicaState::kStarting, 2);
    is(1, ReplicaState::kTraining, 2);
    pass(0.2);
    EXPECT_EQ(state_.faults.size(), 2u);
}

TEST_F(CampaignRunnerTest, whatWaitedTooLongIsSkippedAndSaysWhy) {
    is(3, ReplicaState::kFetching);
    ASSERT_TRUE(runner_->start(plan({{1000, fault(FaultKind::kKillReplica, 1)}})).ok());
    pass(25);
    EXPECT_THAT(injected(), IsEmpty());
    ASSERT_EQ(view().skipped.size(), 1u);
    EXPECT_THAT(view().skipped[0].why, HasSubstr("left 2 of 4 replicas training"));
    pass(10);
    EXPECT_EQ(outcome(), CampaignOutcome::kFailed);
    EXPECT_THAT(view().ended->why, HasSubstr("0 of 1 planned fault"));
}

TEST_F(CampaignRunnerTest, aFaultThatCannotBePutIsSkipped) {
    refusal_ = "could not be injected: r2s0 is not connected";
    ASSERT_TRUE(runner_->start(plan({{1000, fault(FaultKind::kSlow, 2)}})).ok());
    pass(2);
    ASSERT_EQ(view().skipped.size(), 1u);
    EXPECT_EQ(view().skipped[0].why, refusal_);
    pass(30);
    EXPECT_FALSE(runner_->active());
}

TEST_F(CampaignRunnerTest, whatLastsIsEndedWithTheCampaign) {
    lasts_ = true;
    ASSERT_TRUE(runner_->start(plan({{1000, fault(FaultKind::kSlow, 2)}})).ok());
    pass(29.5);
    EXPECT_THAT(asked_, IsEmpty());
    pass(1);
    EXPECT_THAT(asked_, ElementsAre(1));
    EXPECT_EQ(outcome(), CampaignOutcome::kPassed);
}

TEST_F(CampaignRunnerTest, anAbortEndsWhatLastsAtOnceAndInjectsNothingMore) {
    lasts_ = true;
    ASSERT_TRUE(
        runner_
            ->start(plan({{1000, fault(FaultKind::kSlow, 2)}, {9000, fault(FaultKind::kSlow, 3)}}))
            .ok());
    pass(2);
    EXPECT_EQ(runner_->abort(7, "bert").code(), absl::StatusCode::kNotFound);
    ASSERT_TRUE(runner_->abort(1, "bert").ok());
    EXPECT_THAT(asked_, ElementsAre(1));
    EXPECT_EQ(outcome(), CampaignOutcome::kAborted);
    EXPECT_EQ(view().ended->why, "stopped by bert");
    pass(30);
    EXPECT_EQ(state_.faults.size(), 1u);
}

TEST_F(CampaignRunnerTest, itWaitsUntilTheLostAreBackButNotForEver) {
    ASSERT_TRUE(runner_->start(plan({{29'000, fault(FaultKind::kKillReplica, 1)}})).ok());
    pass(29.5);
    model::IncidentOpened opened;
    opened.incident = 1;
    opened.replica = 1;
    opened.fault = 1;
    emit(opened);
    pass(5);
    EXPECT_TRUE(runner_->active());
    emit(model::IncidentClosed{1, 10, 5000, 1, 0, "rejoined at step 9"});
    pass(0.2);
    EXPECT_EQ(outcome(), CampaignOutcome::kPassed);
}

TEST_F(CampaignRunnerTest, whoDoesNotComeBackIsNotWaitedForBeyondTheSettlingTime) {
    model::CampaignStarted c = plan({{29'000, fault(FaultKind::kKillReplica, 1)}});
    c.criteria.maxRejoinMs = 60'000;
    ASSERT_TRUE(runner_->start(c).ok());
    pass(29.5);
    model::IncidentOpened opened;
    opened.incident = 1;
    opened.replica = 1;
    emit(opened);
    pass(11);
    EXPECT_EQ(outcome(), CampaignOutcome::kFailed);
    EXPECT_THAT(view().ended->why, HasSubstr("not back yet"));
}

TEST_F(CampaignRunnerTest, aJobThatHasNotSettledHasNotPassedWhateverWasAsked) {
    ASSERT_TRUE(runner_->start(plan({{1000, fault(FaultKind::kSlow, 1)}})).ok());
    pass(5);
    emit(model::JobPhaseChanged{model::JobPhase::kWaiting, "waiting for r2"});
    pass(36);
    EXPECT_EQ(outcome(), CampaignOutcome::kFailed);
    EXPECT_THAT(view().ended->why, HasSubstr("had not settled after 10 s"));
    EXPECT_THAT(view().ended->why, HasSubstr("it was waiting"));
}

TEST_F(CampaignRunnerTest, aLedgerThatDoesNotTileFailsIt) {
    ledger_ = {false, "sample 5 twice"};
    ASSERT_TRUE(runner_->start(plan({{1000, fault(FaultKind::kSlow, 2)}})).ok());
    pass(31);
    EXPECT_EQ(outcome(), CampaignOutcome::kFailed);
    EXPECT_THAT(view().ended->why, HasSubstr("sample 5 twice"));
}

TEST_F(CampaignRunnerTest, aJobThatEndsCutsItOff) {
    ASSERT_TRUE(runner_->start(plan({{1000, fault(FaultKind::kSlow, 2)}})).ok());
    pass(2);
    runner_->jobEnds("all steps done");
    EXPECT_EQ(outcome(), CampaignOutcome::kCutOff);
    EXPECT_THAT(view().ended->why, HasSubstr("all steps done"));
}

TEST_F(CampaignRunnerTest, theNextCoordinatorGoesOnAndInjectsNothingTwice) {
    lasts_ = true;
    ASSERT_TRUE(runner_
                    ->start(plan({{1000, fault(FaultKind::kSlow, 1)},
                                  {2000, fault(FaultKind::kSlow, 2)},
                                  {20'000, fault(FaultKind::kNanGradient, 3)}}))
                    .ok());
    pass(1.5);
    // The second was taken on but had not taken effect when the coordinator was lost.
    runner_ = std::make_unique<CampaignRunner>(hands());
    now_ += 3 * kSecond;
    runner_->restore({{1, "campaign 1, fault 1"}, {9, "campaign 1, fault 2"}});
    EXPECT_TRUE(runner_->active());
    pass(20);
    EXPECT_THAT(injected(), ElementsAre(FaultKind::kSlow, FaultKind::kNanGradient));
    pass(10);
    EXPECT_THAT(asked_, testing::Contains(1u));
    EXPECT_THAT(asked_, testing::Contains(9u));
    EXPECT_THAT(view().ended->why, HasSubstr("no controller was there for 3.5 s of it"));
}

TEST_F(CampaignRunnerTest, whatFellIntoALongAbsenceIsSkippedAndAnAbsenceToTheEndIsACutOff) {
    ASSERT_TRUE(runner_
                    ->start(plan(
                        {{2000, fault(FaultKind::kSlow, 1)}, {29'000, fault(FaultKind::kSlow, 2)}}))
                    .ok());
    pass(1);
    runner_ = std::make_unique<CampaignRunner>(hands());
    now_ += 24 * kSecond;
    runner_->restore({});
    pass(0.2);
    ASSERT_EQ(view().skipped.size(), 1u);
    EXPECT_THAT(view().skipped[0].why, HasSubstr("no controller was there"));

    runner_ = std::make_unique<CampaignRunner>(hands());
    now_ += 60 * kSecond;
    runner_->restore({});
    pass(0.2);
    EXPECT_EQ(outcome(), CampaignOutcome::kCutOff);
    EXPECT_THAT(view().ended->why, HasSubstr("no controller was there for"));
}

TEST_F(CampaignRunnerTest, nothingIsTakenUpWhereNothingWasOpen) {
    runner_->restore({});
    EXPECT_FALSE(runner_->active());
    ASSERT_TRUE(runner_->start(plan({{1000, fault(FaultKind::kSlow, 1)}})).ok());
    pass(31);
    runner_ = std::make_unique<CampaignRunner>(hands());
    runner_->restore({});
    EXPECT_FALSE(runner_->active());
}

}  // namespace
}  // namespace bulkhead::runtime
