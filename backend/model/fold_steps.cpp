// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "backend/model/fold.h"

namespace bulkhead::model {

StepStretch StepStretch::of(const StepPoint& p) {
    StepStretch out{p.step, p.step, p.timeNs, p.timeNs, 1, p.samples};
    out.odd = p.attempt > 1 || p.skip || p.suspect;
    out.loss = Extent::of(p.loss);
    out.gradNorm = Extent::of(p.gradNorm);
    out.learningRate = Extent::of(p.learningRate);
    out.tokensPerSecond = Extent::of(p.tokensPerSecond);
    out.effectiveTime = Extent::of(p.effectiveTime);
    out.stepMs = Extent::of(p.stepMs);
    out.stallMs = Extent::of(p.stallMs);
    out.contributors = Extent::of(p.contributors);
    for (const double loss : p.domainLoss)
        out.domainLoss.push_back(loss < 0 ? Extent{} : Extent::of(loss));
    return out;
}

void StepStretch::absorb(const StepStretch& next) {
    first = std::min(first, next.first);
    last = std::max(last, next.last);
    beginNs = std::min(beginNs, next.beginNs);
    endNs = std::max(endNs, next.endNs);
    steps += next.steps;
    samples += next.samples;
    odd = odd || next.odd;
    for (Extent StepStretch::*figure :
         {&StepStretch::loss, &StepStretch::gradNorm, &StepStretch::learningRate,
          &StepStretch::tokensPerSecond, &StepStretch::effectiveTime, &StepStretch::stepMs,
          &StepStretch::stallMs, &StepStretch::contributors})
        (this->*figure).absorb(next.*figure);
    if (domainLoss.size() < next.domainLoss.size()) domainLoss.resize(next.domainLoss.size());
    for (size_t d = 0; d < next.domainLoss.size(); ++d) domainLoss[d].absorb(next.domainLoss[d]);
}

}  // namespace bulkhead::model

namespace bulkhead::model::fold_detail {
namespace {

/// A step whose place the next one takes goes on in the stretches before.
void keepEarlier(RunState& s) {
    if (s.steps.size() < s.steps.kCapacity || s.steps[0].superseded) return;
    s.earlierSteps.push(StepStretch::of(s.steps[0]));
}

bool fits(const std::vector<Contribution>& contributors) {
    return contributors.size() <= static_cast<size_t>(Limits::kReplicas);
}

StepPoint pointOf(RunState& s, int64_t at, const StepCommitted& e) {
    StepPoint p;
    p.step = e.record.step;
    p.lineage = e.record.lineage;
    p.timeNs = at;
    p.loss = e.loss;
    p.gradNorm = e.gradNorm;
    p.learningRate = e.learningRate;
    p.tokensPerSecond = e.tokensPerSecond;
    p.effectiveTime = e.effectiveTime;
    p.stepMs = e.stepMs;
    // An incident's detection may reach back before the previous commit.
    p.stallMs = std::isfinite(e.stepMs) && e.stepMs > 0 ? std::min(s.pendingStallMs, e.stepMs)
                                                        : s.pendingStallMs;
    p.contributors = static_cast<uint32_t>(e.record.contributors.size());
    p.attempt = e.record.attempt;
    p.samples = e.record.samples;
    p.skip = e.record.skip;
    p.domainLoss = e.domainLoss;
    noteTraffic(s, p, e);
    return p;
}

void noteContributors(RunState& s, const StepCommitted& e) {
    for (const Contribution& c : e.record.contributors) {
        ReplicaView* view = replicaOf(s, c.replica);
        if (!view) continue;
        view->step = e.record.step;
        view->lastContributedStep = e.record.step;
    }
    for (const ReplicaLedger& line : e.replicas)
        if (ReplicaView* view = replicaOf(s, line.replica)) view->ledger = line;
}

/// A step that came late although nobody was found lost is a stall as well, unless it took less
/// time than that: then somebody has set the clock.
void noteSpeed(RunState& s, const StepCommitted& e) {
    constexpr double kWeight = 0.1;
    if (s.pendingStallMs > 0 || e.record.attempt > 1) return;
    const bool measured = std::isfinite(e.stepMs) && e.stepMs > 0;
    const auto frozen = frozenStretch(s);
    if (frozen && !(measured && e.stepMs < durationMs(frozen->beginNs, frozen->endNs)))
        s.stalls.push(*frozen);
    else if (measured)
        s.typicalStepMs += (e.stepMs - s.typicalStepMs) * (s.typicalStepMs > 0 ? kWeight : 1);
}

/// Events of runs older than the chain have none.
void noteLink(RunState& s, const std::string& link) {
    constexpr size_t kLength = 64;
    if (link.size() == kLength) s.link = link;
}

}  // namespace

bool fold(RunState& s, int64_t at, const LineageOpened& e) {
    noteLink(s, e.link);
    const bool isRollback = s.lineage != 0 && e.lineage != s.lineage && !s.steps.empty();
    StepSpan span{s.lineage, e.fromStep, 0, at, text(e.why)};
    if (isRollback) {
        for (size_t i = s.steps.size(); i-- > 0;) {
            StepPoint& p = s.steps[i];
            if (p.superseded) continue;
            if (p.step <= e.fromStep) break;
            p.superseded = true;
            span.last = std::max(span.last, p.step);
            addTo(s.counters.stepsSuperseded, 1);
            addTo(s.counters.samplesSuperseded, p.samples);
        }
        // One that `fromStep` divides stays: the steps behind it cannot be told apart any more.
        s.earlierSteps.dropLastWhile([&](const StepStretch& gone) {
            if (gone.first <= e.fromStep) return false;
            span.last = std::max(span.last, gone.last);
            addTo(s.counters.stepsSuperseded, gone.steps);
            addTo(s.counters.samplesSuperseded, gone.samples);
            return true;
        });
        addTo(s.counters.rollbacks, 1);
        if (span.last != 0) s.superseded.push(std::move(span));
    }
    s.lineage = e.lineage;
    s.term = std::max(s.term, e.term);
    return true;
}

bool fold(RunState& s, int64_t at, const QuorumDecided& e) {
    if (!fits(e.contributors) || e.joiners.size() > static_cast<size_t>(Limits::kReplicas))
        return false;
    s.quorum = withText(e, &QuorumDecided::explanation);
    s.quorumNs = at;
    s.epoch = e.epoch;
    s.layout = e.layout;
    const bool waits = s.phase == JobPhase::kStarting || s.phase == JobPhase::kWaiting;
    if (waits && !e.explanation.empty()) s.explanation = s.quorum->explanation;
    return true;
}

bool fold(RunState& s, int64_t at, const StepCommitted& e) {
    constexpr size_t kMostDomains = 4096;
    if (!fits(e.record.contributors) || e.shards.size() > static_cast<size_t>(Limits::kShards) ||
        e.replicas.size() > static_cast<size_t>(Limits::kReplicas) ||
        e.domainLoss.size() > kMostDomains || e.traffic.copies.size() > kMostDomains ||
        e.traffic.remote.size() > kMostDomains)
        return false;
    noteLink(s, e.link);
    noteSpeed(s, e);
    keepEarlier(s);
    s.steps.push(pointOf(s, at, e));
    s.pendingStallMs = 0;
    s.lineage = e.record.lineage;
    s.term = e.record.term;
    s.epoch = e.record.epoch;
    s.layout = e.record.layout;
    s.effectiveTime = e.effectiveTime;
    noteContributors(s, e);
    addTo(s.counters.commits, 1);
    addTo(s.counters.samples, e.record.samples);
    addTo(s.counters.tokens, e.record.tokens);
    if (e.record.skip) addTo(s.counters.skippedSteps, 1);
    s.lastCommit = e;
    s.lastCommitNs = at;
    return true;
}

bool fold(RunState& s, int64_t at, const StepRedone& e) {
    if (e.lost.size() > static_cast<size_t>(Limits::kReplicas)) return false;
    s.redos.push({at, withText(e, &StepRedone::why)});
    addTo(s.counters.redos, 1);
    return true;
}

bool fold(RunState& s, int64_t at, const StepsSuspect& e) {
    if (e.last < e.first) return false;
    for (size_t i = s.steps.size(); i-- > 0;) {
        StepPoint& p = s.steps[i];
        if (p.superseded) continue;
        if (p.step <= e.first) break;
        if (p.step <= e.last) p.suspect = true;
    }
    s.suspect.push({s.lineage, e.first, e.last, at, text(e.why)});
    return true;
}

bool fold(RunState& s, int64_t at, const RangeQuarantined& e) {
    s.quarantined.push({at, e.range, text(e.why)});
    noteLink(s, e.link);
    return true;
}

bool fold(RunState& s, int64_t, const ParityDisputed& e) {
    noteLink(s, e.link);
    return true;
}

bool fold(RunState& s, int64_t, const ParityPaced& e) {
    s.parityPace = e;
    return true;
}

}  // namespace bulkhead::model::fold_detail
