// SPDX-License-Identifier: Apache-2.0
// Jobs whose ranks are a program of their own.
#include "tests/fault/job_test.h"

namespace bulkhead::fault {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class CommandJob : public JobTest {
  protected:
    model::JobSpec spec(uint32_t replicas, uint64_t steps) {
        model::JobSpec s;
        s.name = "fit";
        s.replicas = replicas;
        s.shards = 1;
        s.steps = steps;
        s.allowFaults = true;
        s.command = {BULKHEAD_EMBEDDED_RANK};
        s.env = {"TEST_EXPECTS=numbers"};
        s.directory = host_->dir();
        s.sequenceLength = 1;
        s.domains = {{"numbers", {}}};
        s.policies.checkpointEverySteps = 20;
        s.policies.lr = model::LrPolicy::kNone;
        s.policies.parityEverySteps = 1;  // the cost of a hash depends on the machine
        s.bucketBytes = 1 << 12;
        return s;
    }
};

TEST_F(CommandJob, APeerIsKilledComesBackAndTheLedgerAddsUp) {
    host();
    start(spec(4, 0));
    awaitStep(20);
    inject(model::FaultKind::kKillReplica, 2);
    const auto closed = await<model::IncidentClosed>();
    ASSERT_TRUE(closed.has_value());
    await<model::StepCommitted>(
        [](const model::StepCommitted& c) { return c.record.contributors.size() == 4; });
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    const auto commits = all<model::StepCommitted>();
    // A mean of 4.5, from everywhere: the gradient reaches all of it, in the step's own scale.
    EXPECT_LT(commits.back().loss, 20);
    EXPECT_GT(commits.back().loss, 0) << "the program was told which samples are its";
    for (const auto& c : commits) EXPECT_FALSE(c.record.skip);
    EXPECT_THAT(all<model::InvariantBroken>(), IsEmpty());
    EXPECT_THAT(all<model::ParityDisputed>(), IsEmpty());
}

TEST_F(CommandJob, ItGoesOnFromItsCheckpointInALineageOfItsOwn) {
    host();
    start(spec(2, 25));
    expectFinishedWell();
    const std::string first = run_;
    start(spec(2, 50), first);
    expectFinishedWell();
    const auto commits = all<model::StepCommitted>();
    EXPECT_EQ(commits.front().record.step, 26u);
    EXPECT_GT(commits.back().loss, 0) << "the program was told which samples are its";
    std::vector<std::string> local;
    for (const auto& said : all<model::RankOutput>())
        if (said.line.find("local state") != std::string::npos)
            local.push_back("r" + std::to_string(said.rank.replica) +
                            said.line.substr(said.line.find(" has")));
    ASSERT_THAT(local, SizeIs(1)) << "its writer's alone";
    const std::string writer = local[0].substr(0, 2);
    EXPECT_EQ(local[0], writer + " has the local state of " + writer + " after step 25");
}

TEST_F(CommandJob, AProgramThatIsNotThereEndsTheJobAndIsNamed) {
    host();
    model::JobSpec s = spec(1, 0);
    s.command = {"/nowhere/train"};
    s.policies.restartLimit = 1;
    start(s);
    const auto failed = await<model::ReplicaChanged>([](const model::ReplicaChanged& r) {
        return r.why.find("/nowhere/train") != std::string::npos;
    });
    ASSERT_TRUE(failed.has_value());
}

TEST_F(CommandJob, ALostRankEndsItsReplicaAloneAndEachShardAgreesWithItsTwin) {
    host();
    model::JobSpec s = spec(2, 0);
    s.shards = 2;
    start(s);
    awaitStep(20);
    model::FaultSpec fault;
    fault.kind = model::FaultKind::kKillRank;
    fault.replica = fault.shard = 1;
    ASSERT_TRUE(host_->controller().inject(run_, fault, 0, "", "test").ok());
    ASSERT_TRUE(await<model::IncidentClosed>().has_value());
    await<model::StepCommitted>(
        [](const model::StepCommitted& c) { return c.record.contributors.size() == 2; });
    EXPECT_THAT(all<model::RankExited>(),
                testing::Each(testing::ResultOf([](const auto& e) { return e.rank.replica; }, 1)));
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_THAT(all<model::ParityDisputed>(), IsEmpty());
    size_t compared = 0;
    for (const auto& c : all<model::StepCommitted>())
        for (const auto& group : c.parity)
            compared += group.replicas.size() == 2 && group.hashes.size() == 2;
    EXPECT_GT(compared, 10u);
}

}  // namespace
}  // namespace bulkhead::fault
