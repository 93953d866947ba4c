// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/model/command.h"
#include "backend/model/event.h"

namespace bulkhead::test {

/// The shape of a made-up run; by default the little one that SampleRun is.
struct RunShape {
    int32_t replicas = 4;
    int32_t shards = 2;
    uint64_t seed = 88172645463325252ull;  ///< of its noise, and of when replicas are lost; not 0
    uint64_t decaySteps = 400;             ///< until the loss is nearly as low as it gets
    uint64_t lossEvery = 0;      ///< steps from loss to loss, about; 0: two losses, at 40 and 90
    uint64_t rollbackEvery = 0;  ///< steps until the job goes back to a checkpoint; 0: never
    uint64_t checkpointEvery = 50;
    uint64_t loadsEvery = 2;  ///< steps from one ExpertLoads to the next
    bool compares = false;    ///< replicas compare hashes of their states at every step
    bool hasGpus = false;     ///< nodes tell of their GPUs, at every tenth step
};

/// The shape of a long job's run, with losses, checkpoints and a rollback now and then.
RunShape largeRun();

/// Events of a run that nobody trained, the same for the same shape, and a ledger that adds up: it
/// trains, loses replicas, which come back by fetch and replay, and its domains prefer different
/// experts. Nothing in it is measured. Thread: one.
class MadeRun {
  public:
    static constexpr int64_t kStartNs = 1'790'000'000'000'000'000;
    static constexpr int kMoeLayers = 6;
    static constexpr int kExperts = 16;
    static constexpr int kDomains = 4;

    explicit MadeRun(RunShape shape = {});
    /// The start of the run: spec, model, nodes, all replicas training.
    std::vector<model::Event> opening();
    /// Everything that happens between the commit before and the next one.
    std::vector<model::Event> nextStep();
    /// opening() and `steps` steps.
    std::vector<model::Event> events(int steps);
    /// The end of the run: all steps done.
    model::Event ending();
    /// The experts have moved; the steps after this run in the new layout.
    model::Event moveExperts(const model::Action& action);
    /// An operator's action was done.
    model::Event done(const model::Action& action);
    /// The backend proposes `action`, a layout, because of `why`.
    model::Event propose(const model::Action& action, const char* why);
    int64_t nowNs() const { return now_; }
    uint64_t step() const { return step_; }

  private:
    model::Event at(int64_t timeNs, model::EventBody body,
                    model::Severity severity = model::Severity::kInfo);
    model::JobSpec spec() const;
    void mayLose(std::vector<model::Event>& out);
    void lose(std::vector<model::Event>& out, int32_t replica, bool injected);
    void comeBack(std::vector<model::Event>& out);
    void goBack(std::vector<model::Event>& out);
    void commit(std::vector<model::Event>& out);
    void checkpoint(std::vector<model::Event>& out);
    void sample(std::vector<model::Event>& out);
    std::vector<model::NodeSample> gpus();
    void loads(std::vector<model::Event>& out);
    void startRanks(std::vector<model::Event>& out, int32_t replica, int64_t timeNs,
                    int32_t firstPid);
    void setState(std::vector<model::Event>& out, int64_t time, int32_t replica,
                  model::ReplicaState state, const std::string& why);
    void compareStates(model::StepCommitted& step);
    uint64_t random();
    double noise();

    const RunShape shape_;
    uint64_t seq_ = 0;
    int64_t now_ = kStartNs;
    uint64_t step_ = 0;
    uint64_t sample_ = 0;  ///< the next one of domain 0
    uint64_t epoch_ = 1;
    uint64_t lineage_ = 1;
    uint64_t layout_ = 0;
    uint64_t random_;
    std::string link_;
    std::vector<model::ReplicaState> states_;
    std::vector<uint32_t> incarnations_;
    int32_t away_ = -1;
    uint64_t awaySince_ = 0;
    int64_t awayNs_ = 0;
    uint64_t incident_ = 0;
    uint64_t faults_ = 0;
    uint64_t openFault_ = 0;   ///< that made away who is away; 0: none
    uint64_t rollbackAt_ = 0;  ///< the last step that was committed before the last one
    uint64_t checkpointStep_ = 0;
    uint64_t checkpointSample_ = 0;
    double useful_ = 0;
    double wall_ = 0;
    double stallMs_ = 0;
};

}  // namespace bulkhead::test
