// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "backend/campaign/judge.h"
#include "backend/model/run_state.h"

namespace bulkhead::campaign {

/// A run told event by event, on a clock of its own in milliseconds.
class Story {
  public:
    static constexpr int64_t kBegin = 1'700'000'000'000'000'000;
    static int64_t at(double ms) { return kBegin + static_cast<int64_t>(ms * 1e6); }

    Story() {
        model::RunStarted run;
        run.spec.name = "demo";
        run.spec.replicas = 4;
        run.spec.shards = 2;
        run.host = "box";
        add(0, run);
    }

    Story& add(double ms, model::EventBody body) {
        model::apply(state, {++seq_, at(ms), model::Severity::kInfo, std::move(body)});
        return *this;
    }

    /// Commits every 100 ms, (from, to], `contributors` of four.
    Story& train(double fromMs, double toMs, uint32_t contributors) {
        for (double ms = fromMs + 100; ms <= toMs; ms += 100) {
            model::StepCommitted step;
            step.record.step = ++step_;
            step.record.lineage = 1;
            step.stepMs = 100;
            step.record.contributors.resize(contributors);
            for (uint32_t r = 0; r < contributors; ++r)
                step.record.contributors[r].replica = static_cast<int32_t>(r);
            add(ms, step);
        }
        return *this;
    }

    Story& campaign(double ms, model::CampaignCriteria criteria) {
        model::CampaignStarted c;
        c.campaign = 1;
        c.name = "calm";
        c.about = "A <b>quiet</b> one.";
        c.durationMs = 10'000;
        c.settleMs = 5'000;
        c.criteria = criteria;
        c.by = "anna";
        model::FaultSpec kill;
        kill.replica = 2;
        c.plan = {{1000, kill}, {9000, kill}};
        return add(ms, c);
    }

    Story& fault(double ms, uint64_t id, uint64_t planned,
                 model::FaultKind kind = model::FaultKind::kKillReplica) {
        model::FaultSpec spec;
        spec.kind = kind;
        spec.replica = 2;
        add(ms, model::FaultInjected{id, spec, step_ + 1, model::campaignFault(1, planned)});
        return add(ms, model::FaultEnded{id, "done"});
    }

    Story& incident(double ms, uint64_t id, uint64_t fault,
                    model::EvidenceKind cause = model::EvidenceKind::kProcessExit) {
        model::IncidentOpened opened;
        opened.incident = id;
        opened.replica = 2;
        opened.fault = fault;
        opened.cause = cause;
        opened.title = "r2 lost";
        return add(ms, opened);
    }

    Story& back(double ms, uint64_t id, double stallMs, double rejoinMs) {
        add(ms, model::IncidentPhase{id, model::IncidentPhaseKind::kDetect, at(ms - rejoinMs),
                                     at(ms - rejoinMs + stallMs)});
        add(ms, model::IncidentPhase{id, model::IncidentPhaseKind::kFetch,
                                     at(ms - rejoinMs + stallMs), at(ms)});
        return add(ms, model::IncidentClosed{id, stallMs, rejoinMs, 1, 4, "rejoined at step 40"});
    }

    const model::CampaignView& view() const { return state.campaigns.back(); }

    model::RunState state;

  private:
    uint64_t seq_ = 0;
    uint64_t step_ = 0;
};

}  // namespace bulkhead::campaign
