// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <cstdint>
#include <vector>

#include "backend/model/command.h"
#include "backend/model/event.h"

namespace bulkhead::test {

/// A made-up run of 4 replicas x 2 shards, the same every time: it trains, loses replica 2 at step
/// 40 and replica 1 at step 90, both come back by fetch and replay, and four domains prefer
/// different experts. Feeds models, GUI tests and pictures. Nothing in it is measured.
class SampleRun {
  public:
    static constexpr int64_t kStartNs = 1'790'000'000'000'000'000;
    static constexpr int32_t kReplicas = 4;
    static constexpr int32_t kShards = 2;
    static constexpr int kMoeLayers = 6;
    static constexpr int kExperts = 16;
    static constexpr int kDomains = 4;

    SampleRun();
    /// The start of the run: spec, model, nodes, all replicas training.
    std::vector<model::Event> opening();
    /// Everything that happens between the commit before and the next one.
    std::vector<model::Event> nextStep();
    /// opening() and `steps` steps.
    std::vector<model::Event> events(int steps);
    /// The experts have moved; the steps after this run in the new layout.
    model::Event moveExperts(const model::Action& action);
    /// An operator's action was done.
    model::Event done(const model::Action& action);
    /// The backend proposes `action`, a layout, because of `why`.
    model::Event propose(const model::Action& action, const char* why);
    int64_t nowNs() const { return now_; }

  private:
    model::Event at(int64_t timeNs, model::EventBody body,
                    model::Severity severity = model::Severity::kInfo);
    void commit(std::vector<model::Event>& out);
    void lose(std::vector<model::Event>& out, int32_t replica, uint64_t fault);
    void comeBack(std::vector<model::Event>& out);
    void sample(std::vector<model::Event>& out);
    void loads(std::vector<model::Event>& out);
    void setState(std::vector<model::Event>& out, int64_t time, int32_t replica,
                  model::ReplicaState state, const char* why);
    double noise();

    uint64_t seq_ = 0;
    int64_t now_ = kStartNs;
    uint64_t step_ = 0;
    uint64_t sample_ = 0;  ///< the next one of domain 0
    uint64_t epoch_ = 1;
    uint64_t layout_ = 0;
    uint64_t random_ = 88172645463325252ull;
    std::vector<model::ReplicaState> states_;
    std::vector<uint32_t> incarnations_;
    int32_t away_ = -1;
    uint64_t awaySince_ = 0;
    int64_t awayNs_ = 0;
    uint64_t incident_ = 0;
    double useful_ = 0;
    double wall_ = 0;
    double stallMs_ = 0;
};

}  // namespace bulkhead::test
