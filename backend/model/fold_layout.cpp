// SPDX-License-Identifier: Apache-2.0
#include "backend/model/expert_rules.h"
#include "backend/model/fold.h"

namespace bulkhead::model::fold_detail {
namespace {

uint64_t sumOf(const std::vector<uint64_t>& values) {
    uint64_t sum = 0;
    for (const uint64_t v : values) addTo(sum, v);
    return sum;
}

void add(TrafficSum& sum, const StepPoint& p) {
    addTo(sum.steps, 1);
    addTo(sum.copies, p.copies);
    addTo(sum.remote, p.remoteCopies);
    addTo(sum.bytes, p.allToAllBytes);
}

uint64_t differences(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    uint64_t n = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) n += a[i] != b[i];
    return n;
}

}  // namespace

void noteTraffic(RunState& s, StepPoint& p, const StepCommitted& e) {
    p.layout = e.record.layout;
    p.copies = sumOf(e.traffic.copies);
    p.remoteCopies = sumOf(e.traffic.remote);
    p.allToAllBytes = e.traffic.bytes;
    if (p.copies == 0) return;
    for (size_t i = s.layouts.size(); i-- > 0;) {
        LayoutView& view = s.layouts[i];
        if (!view.ok) continue;
        const bool ofIt = view.layout == p.layout && view.step < p.step;
        if (ofIt && view.after.steps < LayoutView::kWindow) add(view.after, p);
        return;
    }
}

bool fold(RunState& s, int64_t at, const LayoutChanged& e) {
    if (e.expertShard.size() > Limits::kExpertCells || e.domainShare.size() > Limits::kExpertCells)
        return false;
    const std::vector<int32_t>& lay = s.expertShard.empty() ? s.model.expertShard : s.expertShard;
    LayoutView view;
    view.layout = e.layout;
    view.step = e.step;
    view.timeNs = at;
    view.ok = e.ok;
    view.expertsMoved = e.ok ? differences(lay, e.expertShard) : 0;
    view.bytesMoved = e.bytesMoved;
    view.grouped = !e.domainShare.empty();
    view.predictedRemote = e.predictedRemote;
    view.before = latestTraffic(s);
    view.why = text(e.why);
    s.layouts.push(std::move(view));
    if (!e.ok) return true;
    s.shardBefore = lay;
    s.shareBefore = s.domainShare;
    s.layout = e.layout;
    s.expertShard = e.expertShard;
    s.domainShare = e.domainShare;
    return true;
}

bool fold(RunState& s, int64_t at, const PlanProposed& e) {
    if (e.expertShard.size() > Limits::kExpertCells || e.domainShare.size() > Limits::kExpertCells)
        return false;
    s.proposals.push({at, withText(e, &PlanProposed::why)});
    return true;
}

bool fold(RunState& s, int64_t, const RoutingSampled& e) {
    s.captureLeft = e.tokensLeft;
    return true;
}

void noteAction(RunState& s, const Action& action) {
    if (rulesOf(action) && action.rules.size() <= Limits::kExpertRules)
        s.expertRules = action.rules;
    if (action.kind == ActionKind::kCaptureRouting) addTo(s.captureLeft, action.tokens);
    if (action.kind != ActionKind::kDismissPlan) return;
    for (size_t i = 0; i < s.proposals.size(); ++i)
        if (s.proposals[i].plan.step == action.step) s.proposals[i].dismissed = true;
}

}  // namespace bulkhead::model::fold_detail

namespace bulkhead::model {

const ProposalView* openProposal(const RunState& s) {
    if (s.proposals.empty()) return nullptr;
    const ProposalView& last = s.proposals.back();
    return last.dismissed || last.plan.layout != s.layout ? nullptr : &last;
}

TrafficSum latestTraffic(const RunState& s) {
    TrafficSum sum;
    for (size_t i = s.steps.size(); i-- > 0 && sum.steps < LayoutView::kWindow;) {
        const StepPoint& p = s.steps[i];
        if (p.superseded) continue;
        if (p.layout != s.layout) break;
        if (p.copies > 0) fold_detail::add(sum, p);
    }
    return sum;
}

}  // namespace bulkhead::model
