// SPDX-License-Identifier: Apache-2.0
// A node of eight GPUs: its agent gives them to the ranks of whole jobs, which compute, communicate
// and exchange there. ctest says by its environment what the node is like.
#include <map>
#include <set>

#include "tests/fault/job_test.h"

namespace bulkhead::fault {
namespace {

using testing::HasSubstr;

class GpuNodeJob : public JobTest {
  protected:
    model::JobSpec spec(uint32_t replicas, uint32_t shards, uint64_t steps) {
        model::JobSpec spec = host_->tinySpec(replicas, shards, steps);
        spec.workload = "bigram";
        spec.modelToml.clear();
        spec.device = "cuda";
        spec.bucketBytes = 64 << 10;
        return spec;
    }
    /// GPUs of the ranks that run now, by rank.
    std::map<RankId, std::string> gpus() const {
        std::map<RankId, std::string> now;
        for (const auto& started : all<model::RankStarted>()) now[started.rank] = started.gpuUuid;
        return now;
    }
    void expectEachHasItsOwn(size_t ranks) const {
        std::set<std::string> distinct;
        for (const auto& [rank, uuid] : gpus()) distinct.insert(uuid);
        EXPECT_EQ(distinct.size(), ranks) << lastEvents();
        EXPECT_FALSE(distinct.contains(""));
    }
};

TEST_F(GpuNodeJob, ReplicasOfAnySizeHaveAGpuForEachRank) {
    host();
    for (const uint32_t shards : {2u, 4u, 8u}) {
        start(spec(8 / shards, shards, 5));
        expectFinishedWell();
        expectEachHasItsOwn(8);
    }
}

TEST_F(GpuNodeJob, AReplicaThatFindsTooFewGpusWaitsAndSaysSo) {
    host();
    start(spec(2, 6, 0));
    const auto waits = await<model::ReplicaChanged>([](const model::ReplicaChanged& c) {
        return c.why.find("no node has 6 free slots with a GPU each") != std::string::npos;
    });
    ASSERT_TRUE(waits.has_value());
    EXPECT_THAT(waits->why, HasSubstr("6 of 8 GPUs"));
    EXPECT_THAT(waits->why, HasSubstr("share_gpu = true"));
    expectEachHasItsOwn(6);
}

TEST_F(GpuNodeJob, WhoComesBackHasAGpuThatNobodyElseHas) {
    host();
    start(spec(4, 2, 0));
    awaitStep(3);
    inject(model::FaultKind::kKillReplica, 1);
    await<model::RankStarted>([](const model::RankStarted& s) {
        return s.rank == RankId{1, 0} && s.incarnation > 1;
    });
    await<model::RankStarted>([](const model::RankStarted& s) {
        return s.rank == RankId{1, 1} && s.incarnation > 1;
    });
    expectEachHasItsOwn(8);
    awaitStep(all<model::StepCommitted>().back().record.step + 10);
}

TEST_F(GpuNodeJob, RanksThatMayShareAGpuDo) {
    host();
    model::JobSpec shared = spec(10, 1, 5);
    shared.shareGpu = true;
    start(shared);
    expectFinishedWell();
    EXPECT_EQ(gpus().size(), 10u);
    expectEachHasItsOwn(8);
}

class FourGpusJob : public GpuNodeJob {
  protected:
    std::string gpusOfNode() const override { return "parts"; }
};

TEST_F(FourGpusJob, AReplicaOfSixRanksSpansTwoNodes) {
    host(2);
    start(spec(1, 6, 5));
    expectFinishedWell();
    std::map<std::string, std::set<std::string>> gpusByNode;
    for (const auto& started : all<model::RankStarted>())
        EXPECT_TRUE(gpusByNode[started.node].insert(started.gpuUuid).second);
    ASSERT_EQ(gpusByNode.size(), 2u) << lastEvents();
    EXPECT_EQ(gpusByNode.begin()->second.size() + gpusByNode.rbegin()->second.size(), 6u);
}

class OneGpuJob : public GpuNodeJob {
  protected:
    std::string gpusOfNode() const override { return "0"; }
};

TEST_F(OneGpuJob, TwoReplicasOfTwoRanksTrainOnItAndOneComesBack) {
    host();
    model::JobSpec shared = spec(2, 2, 0);
    shared.shareGpu = true;
    start(shared);
    awaitStep(5);
    inject(model::FaultKind::kKillReplica, 1);
    await<model::RankStarted>([](const model::RankStarted& s) {
        return s.rank == RankId{1, 1} && s.incarnation > 1;
    });
    awaitStep(all<model::StepCommitted>().back().record.step + 10);
    std::set<std::string> used;
    for (const auto& [rank, uuid] : gpus()) used.insert(uuid);
    EXPECT_EQ(gpus().size(), 4u);
    EXPECT_EQ(used.size(), 1u) << lastEvents();
}

}  // namespace
}  // namespace bulkhead::fault
