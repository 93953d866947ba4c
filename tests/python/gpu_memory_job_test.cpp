// SPDX-License-Identifier: Apache-2.0
// Replicas of a PyTorch program whose gradients the GPUs of a node exchange where they are. ctest
// says by its environment what the node is like. By Debian's torch alone, since one that is built
// for CUDA puts its runtime in the place of the tests'.
#include <cmath>

#include "tests/fault/job_test.h"

namespace bulkhead::fault {
namespace {

using testing::IsEmpty;

constexpr uint32_t kReplicas = 3;

class GpuMemoryJob : public JobTest {
  protected:
    void SetUp() override {
        patience_ = 120 * kSecond;
        host();
    }
    static model::JobSpec spec(const std::string& device, uint64_t steps) {
        model::JobSpec s;
        s.name = "rows";
        s.replicas = kReplicas;
        s.shards = 1;
        s.steps = steps;
        s.allowFaults = true;
        s.samplesPerReplica = 8;
        s.sequenceLength = 1;
        s.command = {BULKHEAD_PYTHON, BULKHEAD_PROGRAM, device};
        s.env = {"PYTHONPATH=" BULKHEAD_PYTHONPATH};
        s.domains = {{"data", {}}};
        s.device = device;
        s.bucketBytes = 64 << 10;
        s.timeouts.joinMs = 100'000;  // imports of torch on few cores
        s.policies.lr = model::LrPolicy::kNone;
        s.policies.parityEverySteps = 1;
        return s;
    }
};

TEST_F(GpuMemoryJob, TrainsAsOnTheCpuBitForBit) {
    std::vector<double> losses[2];
    for (const bool gpu : {false, true}) {
        start(spec(gpu ? "cuda" : "cpu", 30));
        expectFinishedWell();
        for (const auto& c : all<model::StepCommitted>()) {
            EXPECT_EQ(c.record.contributors.size(), kReplicas);
            losses[gpu].push_back(c.loss);
        }
    }
    ASSERT_EQ(losses[0].size(), 30u);
    ASSERT_EQ(losses[0], losses[1]);
    EXPECT_LT(losses[1].back(), losses[1].front());
}

TEST_F(GpuMemoryJob, AKilledReplicaCatchesUpAndIsTheSameBitForBit) {
    start(spec("cuda", 0));
    awaitStep(10);
    for (const int32_t replica : {1, 0}) {
        inject(model::FaultKind::kKillReplica, replica);
        ASSERT_TRUE(await<model::IncidentClosed>().has_value());
        const auto again = await<model::StepCommitted>([](const model::StepCommitted& c) {
            return c.record.contributors.size() == kReplicas;
        });
        ASSERT_TRUE(again.has_value());
        awaitStep(again->record.step + 20);
    }
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    EXPECT_THAT(all<model::InvariantBroken>(), IsEmpty());
    EXPECT_THAT(all<model::ParityDisputed>(), IsEmpty());
    EXPECT_EQ(all<model::IncidentOpened>().size(), 2u) << "who caught up was right at once";
    size_t compared = 0;
    for (const auto& c : all<model::StepCommitted>())
        for (const auto& group : c.parity) compared += group.replicas.size() == kReplicas;
    EXPECT_GT(compared, 40u) << "hashes of all three";
}

TEST_F(GpuMemoryJob, AGradientThatIsNotFiniteIsSeenOnTheGpu) {
    start(spec("cuda", 0));
    awaitStep(5);
    inject(model::FaultKind::kNanGradient, 2);
    const auto evidence = await<model::EvidenceSeen>();
    ASSERT_TRUE(evidence.has_value());
    EXPECT_EQ(evidence->kind, model::EvidenceKind::kNonFinite);
    EXPECT_EQ(evidence->replica, 2);
    awaitStep(all<model::StepCommitted>().back().record.step + 5);
    ASSERT_TRUE(act(model::ActionKind::kStop).ok());
    expectFinishedWell();
    for (const auto& c : all<model::StepCommitted>()) EXPECT_TRUE(std::isfinite(c.loss));
}

}  // namespace
}  // namespace bulkhead::fault
