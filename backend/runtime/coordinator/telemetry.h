// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/common/clock.h"
#include "backend/model/event.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/protocol/facts.h"
#include "backend/runtime/protocol/messages.h"

namespace bulkhead::runtime {

/// Health of every rank, from its beats and its agent's samples. Thread: one.
class FleetBook {
  public:
    /// A sample has all ranks of a job of so many, and of a larger one so many, or a 16th of them
    /// if that is more: half of them in turn, then those that have stood still for longest, and
    /// those that did in the sample before.
    static constexpr size_t kRanksAtOnce = 256;

    void started(RankId rank, uint32_t incarnation);
    void exited(RankId rank, uint32_t incarnation);
    void beat(const protocol::Beat& beat, MonoNs now);
    void sampled(const ProcessSample& sample);
    void sampled(const model::NodeSample& sample) { nodes_[sample.node] = sample; }
    void lost(const std::string& node) { nodes_.erase(node); }
    void committed(const protocol::fact::StepCommitted& step, uint32_t shards);

    /// Lines of ranks in their order; ages are relative to `now`. With `withNodes`, how every node
    /// is.
    model::FleetSampled sample(MonoNs now, bool withNodes);
    MonoNs lastBeat(RankId rank) const;

  private:
    struct Rank {
        model::RankSample last;
        MonoNs beatAt = 0;
        MonoNs progressAt = 0;
        uint64_t progress = 0;
        bool changed = false;  ///< started or gone since it was last sampled
    };
    std::vector<RankId> chosen();

    std::map<RankId, Rank> ranks_;
    RankId turn_;                ///< the last one that was sampled in turn
    std::vector<RankId> stood_;  ///< stood still for longest in the last sample
    std::map<std::string, model::NodeSample> nodes_;  ///< by name
};

/// Tokens per expert, summed over committed contributors and over the steps between two events.
class ExpertBook {
  public:
    void describe(const protocol::ModelDescribed& model, uint32_t domains);
    void committed(const protocol::fact::StepCommitted& step);
    /// Returns the counts since the last call; nullopt: none, or the model is unknown.
    std::optional<model::ExpertLoads> take();

  private:
    uint32_t moeLayers_ = 0;
    uint32_t domains_ = 0;
    uint32_t experts_ = 0;
    uint64_t step_ = 0;
    std::vector<uint64_t> counts_;
};

/// Routing of single tokens, for whoever asked. Thread: one.
class RoutingBook {
  public:
    void describe(const protocol::ModelDescribed& model);
    /// So many more tokens of the steps to come.
    void ask(uint64_t tokens) { left_ += tokens; }
    /// Number of tokens that each of `ranks` ranks reports with its next vote; 0: none. All ranks
    /// together report no more than one event should carry.
    uint32_t tokensOf(size_t ranks) const;
    /// Returns the samples of a commit; nullopt: none were requested, or none came.
    std::optional<model::RoutingSampled> committed(const protocol::fact::StepCommitted& step);

  private:
    uint64_t choices_ = 0;  ///< of one token: mixtures x top-k
    uint64_t left_ = 0;     ///< tokens
};

}  // namespace bulkhead::runtime
