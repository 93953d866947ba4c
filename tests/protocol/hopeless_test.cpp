// SPDX-License-Identifier: Apache-2.0
// Replicas that no restart can help, as the coordinator machine hears of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/runtime/protocol/coordinator_machine.h"
#include "backend/runtime/protocol/messages.h"

namespace bulkhead::protocol {
namespace {

using testing::HasSubstr;

class HopelessTest : public testing::Test {
  protected:
    HopelessTest() { feed(machine_.begin(0)); }

    static Options twoReplicas() {
        Options o;
        o.replicas = 2;
        o.shards = 2;
        return o;
    }
    void step(const Input& input) { feed(machine_.step(now_ += kMillisecond, input)); }
    void feed(Actions actions) {
        for (Action& a : actions) all_.push_back(std::move(a));
    }
    RankExited exited(RankId rank, int32_t code, const std::string& words = "") {
        return {rank, 1, code, 0, "node0", 0, words};
    }
    template <class F>
    std::vector<F> facts() const {
        std::vector<F> found;
        for (const Action& a : all_)
            if (const auto* emit = std::get_if<Emit>(&a))
                if (const auto* f = std::get_if<F>(&emit->fact)) found.push_back(*f);
        return found;
    }
    size_t starts(int32_t replica) const {
        size_t n = 0;
        for (const Action& a : all_)
            if (const auto* s = std::get_if<StartReplica>(&a)) n += s->replica == replica;
        return n;
    }

    CoordinatorMachine machine_{twoReplicas(), 1, RecoveredState{}};
    Actions all_;
    MonoNs now_ = 0;
};

TEST_F(HopelessTest, ItsOwnReasonCountsAlsoAfterItWasLostForAnother) {
    step(exited({0, 1}, 6));
    // Its restart is due at once; the next loss has to wait, and finds the replica out.
    step(RankExited{{0, 1}, 2, 6, 0, "node0", 0});
    ASSERT_EQ(starts(0), 2u);
    step(RankExited{{0, 0}, 2, kExitHopeless, 0, "node0", 0, "no such text"});
    now_ += 10 * kSecond;
    step(Tick{});
    EXPECT_EQ(starts(0), 2u);
    EXPECT_EQ(facts<fact::IncidentOpened>().back().title,
              "r0 lost: r0s0 cannot run this job: no such text");
    EXPECT_EQ(facts<fact::IncidentClosed>().back().outcome, "given up");
    EXPECT_TRUE(facts<fact::RunFinished>().empty());
}

TEST_F(HopelessTest, TheJobFailsWhenNoReplicaIsLeftAndNothingFollows) {
    step(Received{{0, 0}, RankHopeless{{0, 0}, 1, "it does not fit"}});
    EXPECT_TRUE(facts<fact::RunFinished>().empty());
    step(exited({1, 1}, kExitHopeless));
    ASSERT_EQ(facts<fact::RunFinished>().size(), 1u);
    EXPECT_FALSE(facts<fact::RunFinished>()[0].ok);
    EXPECT_THAT(facts<fact::RunFinished>()[0].why,
                HasSubstr("r1s1 cannot run this job: it did not say why"));
    const auto* last = std::get_if<Finished>(&all_.back());
    ASSERT_NE(last, nullptr);
    EXPECT_FALSE(last->ok);
    const size_t actions = all_.size();
    step(exited({1, 0}, kExitHopeless));
    step(Tick{});
    EXPECT_EQ(all_.size(), actions);
}

TEST_F(HopelessTest, WhatAReplicaSaysThatTheJobDoesNotHaveChangesNothing) {
    const size_t before = all_.size();
    step(Received{{7, 0}, RankHopeless{{7, 0}, 1, "a stranger"}});
    step(exited({7, 0}, 1));
    Report report;
    report.replica = 7;
    report.incarnation = 1;
    step(Received{{7, 0}, report});
    for (size_t i = before; i < all_.size(); ++i)
        EXPECT_TRUE(std::holds_alternative<WakeAt>(all_[i])) << all_[i].index();
}

/// Its ranks were told to end and had not yet, when the coordinator was lost.
TEST(GivenUpTest, WhatIsAdoptedOfItIsNotStartedAgainWhenItEnds) {
    RecoveredState past;
    past.term = past.lineage = 1;
    past.incarnations = {1, 1};
    past.orders.emplace().givenUp = {1};
    Options options;
    options.replicas = 2;
    options.shards = 1;
    CoordinatorMachine machine(options, 2, past);
    const auto startsOfIt = [](const Actions& actions) {
        return std::count_if(actions.begin(), actions.end(), [](const Action& a) {
            const auto* start = std::get_if<StartReplica>(&a);
            return start != nullptr && start->replica == 1;
        });
    };
    (void)machine.begin(0);
    std::ptrdiff_t starts = 0;
    MonoNs now = 0;
    for (const Input& input : std::vector<Input>{
             RankRunning{{0, 0}, 1, 10, "node0"}, RankRunning{{1, 0}, 1, 11, "node0"},
             InventoryDone{}, RankExited{{1, 0}, 1, 3, 0, "node0", 0, "it was put out"}, Tick{}})
        starts += startsOfIt(machine.step(now += kMillisecond, input));
    starts += startsOfIt(machine.step(now + 60 * kSecond, Tick{}));
    EXPECT_EQ(starts, 0);
}

TEST(FinishedTest, AJobThatHadEndedSaysSoAndDoesNothing) {
    RecoveredState past;
    past.term = 1;
    past.lineage = 1;
    past.finished = true;
    Options options;
    CoordinatorMachine machine(options, 2, past);
    const Actions actions = machine.begin(0);
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_TRUE(std::get<Finished>(actions[0]).ok);
}

}  // namespace
}  // namespace bulkhead::protocol
