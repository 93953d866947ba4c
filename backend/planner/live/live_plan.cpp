// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/live/live_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/model/expert_rules.h"
#include "backend/planner/solve/domain_plan.h"
#include "backend/planner/solve/expected_load.h"

namespace bulkhead::planner {
namespace {

/// Parts that a domain's samples are told to shards in.
constexpr double kParts = 1000;

/// Fewer steps than these say more of their samples than of the router.
constexpr uint64_t kFewSteps = 10;

/// Smallest optimism that is reported, as a part of all copies; less counts as 0.
constexpr double kLeastOptimism = 0.0005;

/// Lower aims for load at higher prices, until the upper end of a plan's range keeps the cap; a
/// plan that comes less near than this is none the better for it.
constexpr uint32_t kMostAims = 4;
constexpr double kDearer = 3, kLeastNearer = 0.001;

/// Largest drift between older and newer steps, as a part of the predicted remote copies.
constexpr double kSteady = 0.03;

std::vector<uint32_t> partsOf(const std::vector<double>& share) {
    std::vector<uint32_t> parts;
    for (const double x : share) parts.push_back(static_cast<uint32_t>(std::lround(x * kParts)));
    return parts;
}

std::vector<double> sharesOf(const std::vector<uint32_t>& parts, uint32_t shards) {
    std::vector<double> share;
    for (size_t row = 0; row + shards <= parts.size(); row += shards) {
        double sum = 0;
        for (uint32_t s = 0; s < shards; ++s) sum += parts[row + s];
        for (uint32_t s = 0; s < shards; ++s)
            share.push_back(sum > 0 ? parts[row + s] / sum : 1.0 / shards);
    }
    return share;
}

DomainPlan planOf(const LiveJob& job, const std::vector<int32_t>& placement,
                  const std::vector<uint32_t>& parts) {
    DomainPlan plan;
    plan.nodeOf.assign(placement.begin(), placement.end());
    plan.share = sharesOf(parts, job.shards);
    return plan;
}

/// Fewer stretches than these do not tell how much steps vary.
constexpr size_t kFewStretches = 4;

/// Standard deviation of sum over sum, where stretches are drawn anew.
double deviationOf(const std::vector<double>& parts, const std::vector<double>& wholes,
                   const std::vector<std::vector<float>>& draws) {
    double sum = 0, squares = 0;
    for (const std::vector<float>& draw : draws) {
        double part = 0, whole = 0;
        for (size_t i = 0; i < parts.size(); ++i) {
            part += draw[i] * parts[i];
            whole += draw[i] * wholes[i];
        }
        const double share = whole > 0 ? part / whole : 0;
        sum += share;
        squares += share * share;
    }
    const auto count = static_cast<double>(draws.size());
    return std::sqrt(std::max(0.0, squares / count - sum / count * (sum / count)));
}

/// [layer] copies that each stretch brings to each shard, stretches x shards.
std::vector<std::vector<float>> loadsOf(const std::vector<DomainCounts>& stretches,
                                        const std::vector<uint32_t>& nodeOf, uint32_t shards) {
    const DomainCounts& any = stretches.front();
    std::vector<std::vector<float>> loads(any.layers,
                                          std::vector<float>(stretches.size() * shards));
    for (uint32_t l = 0; l < any.layers; ++l)
        for (size_t s = 0; s < stretches.size(); ++s)
            for (uint32_t d = 0; d < any.domains; ++d)
                for (uint32_t e = 0; e < any.experts; ++e)
                    loads[l][s * shards + nodeOf[size_t{l} * any.experts + e]] +=
                        static_cast<float>(stretches[s].at(l, d, e));
    return loads;
}

/// `fits`: the plan may be made from these very steps, on which it then looks too good.
LiveForecast forecastOf(const LiveJob& job, const DomainPlan& plan, double optimism, bool fits) {
    LiveForecast it;
    const auto whole = loadsOf({job.counts}, plan.nodeOf, job.shards);
    const std::vector<std::vector<float>> once{{1.0f}};
    it.remoteInSample = remoteShare(job.counts, plan, job.shards);
    it.loadInSample = loadSpread(whole, job.shards, once).mean;
    const double mean = std::min(1.0, it.remoteInSample + optimism);
    it.remote = {mean, mean, mean};
    it.load = {it.loadInSample, it.loadInSample, it.loadInSample};
    const auto sum = [](const DomainCounts& counts) {
        return std::accumulate(counts.values.begin(), counts.values.end(), 0.0);
    };
    it.tokensPerExpert =
        sum(job.counts) / (static_cast<double>(job.counts.layers) * job.counts.experts);
    it.stretches = static_cast<uint32_t>(job.stretches.size());
    it.hasRange = it.stretches >= kFewStretches;
    if (!it.hasRange) return it;
    std::vector<double> copies, remote;
    for (const DomainCounts& stretch : job.stretches) {
        copies.push_back(sum(stretch));
        remote.push_back(copies.back() * remoteShare(stretch, plan, job.shards));
    }
    const auto draws = drawEquals(std::vector<uint32_t>(it.stretches, 0), 1);
    const double deviations = deviationsOf(kRangeConfidence, freedomOf(copies));
    const double corrected = sendsTooSmall(DrawsOf::kTime) * deviations;
    const double wide = corrected * deviationOf(remote, copies, draws);
    it.remote = {mean, std::max(0.0, mean - wide), std::min(1.0, mean + wide)};
    const Spread load =
        loadSpread(loadsOf(job.stretches, plan.nodeOf, job.shards), job.shards, draws);
    const double high = load.mean + corrected * load.deviation;
    it.load = fits ? loadRange(load, {}, DrawsOf::kTime, deviations)
                   : Range{load.mean, std::max(1.0, 2 * load.mean - high), high};
    return it;
}

DomainCounts olderOf(const LiveJob& job) {
    DomainCounts older = job.counts;
    for (size_t i = 0; i < older.values.size(); ++i) older.values[i] -= job.newer.values[i];
    return older;
}

DomainPlanOptions wantedOf(const LiveJob& job, const LiveOptions& options) {
    DomainPlanOptions wanted;
    wanted.nodes = job.shards;
    wanted.group = options.group;
    wanted.loadCap = options.loadCap;
    wanted.pricePerMove = options.pricePerMove;
    wanted.seed = options.seed;
    wanted.starts = static_cast<uint32_t>(std::max(1.0, wanted.starts * options.effort));
    wanted.goOn = options.goOn;
    wanted.onStart = options.onStart;
    for (const model::ExpertRule& rule : job.rules)
        wanted.rules.push_back({rule.layer, rule.expert, rule.pins, true, rule.shard});
    return wanted;
}

LivePlan livePlan(const LiveJob& job, std::vector<int32_t> placement, std::vector<uint32_t> parts,
                  double optimism = 0) {
    LivePlan out;
    LivePreview& p = out.preview;
    p.step = job.step;
    p.layout = job.layout;
    p.experts = placement.size();
    for (size_t i = 0; i < placement.size(); ++i)
        p.expertsMoved += placement[i] != job.expertShard[i];
    p.bytesMoved = p.expertsMoved * job.expertBytes;
    p.remoteNow =
        remoteShare(job.counts, planOf(job, job.expertShard, job.domainShare), job.shards);
    const DomainPlan plan = planOf(job, placement, parts);
    const bool other = placement != job.expertShard || parts != job.domainShare;
    p.forecast = forecastOf(job, plan, other ? optimism : 0, other);
    if (!job.newer.values.empty()) {
        p.remoteOlder = remoteShare(olderOf(job), plan, job.shards);
        p.remoteNewer = remoteShare(job.newer, plan, job.shards);
    }
    if (const model::TrafficSum& sum = job.traffic; sum.copies > 0) {
        p.remoteMeasured = sum.remoteShare();
        p.bytesPerStep = static_cast<double>(sum.bytes) / static_cast<double>(sum.steps);
        if (sum.remote > 0)
            p.bytesPerStepPredicted = p.bytesPerStep * p.forecast.remote.mean / p.remoteMeasured;
    }
    const std::vector<double> share = sharesOf(parts, job.shards);
    for (size_t d = 0; (d + 1) * job.shards <= share.size(); ++d)
        p.homes.push_back({d < job.domains.size() ? job.domains[d] : "",
                           {share.begin() + static_cast<std::ptrdiff_t>(d * job.shards),
                            share.begin() + static_cast<std::ptrdiff_t>((d + 1) * job.shards)}});
    out.action.kind = model::ActionKind::kChangeLayout;
    out.action.expertShard = std::move(placement);
    out.action.domainShare = std::move(parts);
    out.action.predictedRemote = p.forecast.remote.mean;
    return out;
}

absl::Status fits(const LiveJob& job, const Plan& plan) {
    const auto bad = [](auto&&... words) {
        return absl::InvalidArgumentError(absl::StrCat(words...));
    };
    if (plan.shape.layers != job.counts.layers || plan.shape.experts != job.counts.experts)
        return bad("the plan is for ", plan.shape.layers, " layers of ", plan.shape.experts,
                   " experts, the job has ", job.counts.layers, " of ", job.counts.experts);
    if (plan.topology.gpus() != job.shards)
        return bad("the plan is for ", plan.topology.gpus(), " GPUs, a replica of the job has ",
                   job.shards, " shards");
    if (plan.redundant() != 0)
        return bad("the plan has ", plan.redundant(),
                   " redundant experts; a job that trains keeps each expert once");
    return absl::OkStatus();
}

}  // namespace

std::vector<std::string> forecastNotes(const LiveForecast& it) {
    std::vector<std::string> notes;
    if (!it.hasRange)
        notes.push_back(absl::StrCat("no range can be told yet: it takes the counts of ",
                                     kFewStretches * model::ExpertView::kStretch, " steps"));
    if (it.tokensPerExpert < kFewPerExpert)
        notes.push_back(absl::StrFormat(
            "few tokens were counted for this model: %.0f for each expert of a layer, at least "
            "%.0f are wanted; ranges half as wide take four times as many, which bulkheadctl plan "
            "capture records",
            it.tokensPerExpert, kFewPerExpert));
    return notes;
}

absl::StatusOr<LiveJob> liveJob(const model::RunState& state) {
    const model::ExpertView& view = state.experts;
    LiveJob job;
    job.shards = state.spec.shards;
    job.step = view.step;
    job.layout = state.layout;
    job.expertShard = state.expertShard.empty() ? state.model.expertShard : state.expertShard;
    job.domainShare = state.domainShare;
    job.expertBytes = state.model.expertBytes;
    job.traffic = model::latestTraffic(state);
    job.rules = state.expertRules;
    if (state.model.mixtureLayers.size() == state.model.moeLayers)
        job.layerNumbers = state.model.mixtureLayers;
    for (const model::DomainSpec& domain : state.spec.domains) job.domains.push_back(domain.name);
    const size_t placed = size_t{state.model.moeLayers} * state.model.experts;
    if (placed == 0 || job.expertShard.size() != placed)
        return absl::FailedPreconditionError(
            state.model.name.empty()
                ? "the job's model has not been built yet"
                : absl::StrCat("the workload ", state.model.name, " has no experts to place"));
    if (view.stretches.empty() || view.moeLayers != state.model.moeLayers ||
        view.experts != state.model.experts)
        return absl::FailedPreconditionError(
            "no expert has been counted yet; wait until some steps are committed");
    const DomainCounts none{view.moeLayers, view.domains, view.experts, {}};
    const auto add = [&](DomainCounts& to, const std::vector<double>& values) {
        to.values.resize(values.size());
        for (size_t i = 0; i < values.size(); ++i) to.values[i] += values[i];
    };
    job.counts = job.newer = none;
    const size_t half = (view.stretches.size() + 1) / 2;
    const bool halves =
        half < view.stretches.size() && view.step >= view.stretches[half].from + kFewSteps;
    for (size_t i = 0; i < view.stretches.size(); ++i) {
        const std::vector<uint64_t>& loads = view.stretches[i].loads;
        job.stretches.push_back(none);
        job.stretches.back().values.assign(loads.begin(), loads.end());
        add(job.counts, job.stretches.back().values);
        if (halves && i >= half) add(job.newer, job.stretches.back().values);
    }
    return job;
}

bool routingMoves(const LivePreview& p) {
    return p.remoteOlder >= 0 &&
           std::abs(p.remoteNewer - p.remoteOlder) > kSteady * p.forecast.remote.mean;
}

double optimismOf(const LiveJob& job, const LiveOptions& options) {
    if (job.newer.values.empty()) return 0;
    const DomainCounts older = olderOf(job);
    const DomainPlan now = planOf(job, job.expertShard, job.domainShare);
    const auto byOlder = solveDomains(older, now, wantedOf(job, options));
    const auto byNewer = solveDomains(job.newer, now, wantedOf(job, options));
    if (!byOlder.ok() || !byNewer.ok()) return 0;
    const double lost = remoteShare(job.newer, byOlder->plan, job.shards) - byOlder->after +
                        remoteShare(older, byNewer->plan, job.shards) - byNewer->after;
    return lost / 2 / 2 < kLeastOptimism ? 0 : lost / 2 / 2;
}

absl::StatusOr<LivePlan> recommendPlan(const LiveJob& job, const LiveOptions& options,
                                       std::optional<double> optimism) {
    if (absl::Status s = model::checkRules(job.rules, job.expertShard, job.counts.experts,
                                           job.shards, job.layerNumbers);
        !s.ok())
        return s;
    const auto parts = options.group ? job.domainShare : std::vector<uint32_t>();
    const DomainPlan now = planOf(job, job.expertShard, parts);
    DomainPlanOptions wanted = wantedOf(job, options);
    std::optional<LivePlan> best;
    double least = INFINITY;
    for (uint32_t i = 0; i < kMostAims && (i == 0 || !options.goOn || options.goOn()); ++i) {
        const auto made = solveDomains(job.counts, now, wanted);
        if (!made.ok()) return made.status();
        if (!optimism) optimism = optimismOf(job, options);
        LivePlan plan = livePlan(job, {made->plan.nodeOf.begin(), made->plan.nodeOf.end()},
                                 partsOf(made->plan.share), *optimism);
        const LiveForecast& told = plan.preview.forecast;
        const double above = told.hasRange ? told.load.high - options.loadCap : 0;
        if (above < least - kLeastNearer) {
            least = above;
            best = std::move(plan);
        }
        if (above <= 0) break;
        wanted.loadCap = std::max(1.0, wanted.loadCap - above - kLeastNearer);
        wanted.loadPrice *= kDearer;
        wanted.onStart = {};  // its values are those of the first aim
    }
    return *std::move(best);
}

LivePlan planWith(const LiveJob& job, std::vector<int32_t> expertShard,
                  std::vector<uint32_t> domainShare, double optimism) {
    return livePlan(job, std::move(expertShard), std::move(domainShare), optimism);
}

double LayerFigures::maxOverMean() const {
    return load.empty() ? 1 : *std::max_element(load.begin(), load.end());
}

std::vector<LayerFigures> layerFigures(const LiveJob& job, const std::vector<int32_t>& expertShard,
                                       const std::vector<uint32_t>& domainShare) {
    const DomainCounts& all = job.counts;
    const size_t cells = size_t{all.domains} * all.experts;
    std::vector<LayerFigures> figures;
    for (uint32_t l = 0; l < all.layers; ++l) {
        const auto at = all.values.begin() + static_cast<std::ptrdiff_t>(l * cells);
        const DomainCounts one{
            1, all.domains, all.experts, {at, at + static_cast<std::ptrdiff_t>(cells)}};
        const auto own = expertShard.begin() + static_cast<std::ptrdiff_t>(l * all.experts);
        LayerFigures f;
        f.remote = remoteShare(one, planOf(job, {own, own + all.experts}, domainShare), job.shards);
        f.load.assign(job.shards, 0);
        double sum = 0;
        for (size_t i = 0; i < cells; ++i) {
            f.load[static_cast<size_t>(own[static_cast<std::ptrdiff_t>(i % all.experts)])] +=
                one.values[i];
            sum += one.values[i];
        }
        for (double& load : f.load) load = sum > 0 ? load * job.shards / sum : 1;
        figures.push_back(std::move(f));
    }
    return figures;
}

absl::StatusOr<LivePlan> planFromFile(const LiveJob& job, const Plan& plan,
                                      const LiveOptions& options) {
    if (absl::Status s = fits(job, plan); !s.ok()) return s;
    const std::vector<uint32_t> gpuOf = gpuOfSlots(plan.firstSlot);
    std::vector<int32_t> placement(job.expertShard.size());
    for (size_t l = 0; l < plan.layers.size(); ++l)
        for (size_t slot = 0; slot < gpuOf.size(); ++slot)
            placement[l * plan.shape.experts + plan.layers[l].expertOfSlot[slot]] =
                static_cast<int32_t>(gpuOf[slot]);
    std::vector<double> share;
    const uint32_t gpusPerNode = plan.topology.gpusPerNode();
    for (const std::string& domain : job.domains) {
        if (!options.group || plan.homes.empty()) break;
        const auto home = std::find_if(plan.homes.begin(), plan.homes.end(),
                                       [&](const auto& h) { return h.domain == domain; });
        if (home == plan.homes.end())
            return absl::InvalidArgumentError(
                absl::StrCat("the plan names no home for domain \"", domain,
                             "\"; leave homes out with --no-grouping"));
        for (uint32_t s = 0; s < job.shards; ++s)
            share.push_back(home->share[s / gpusPerNode] / gpusPerNode);
    }
    if (const auto* broken = model::brokenRule(job.rules, placement, job.counts.experts))
        return absl::InvalidArgumentError(
            absl::StrCat(model::ruleText(*broken, job.layerNumbers),
                         ", which this plan does not keep; free the expert first"));
    return livePlan(job, std::move(placement), partsOf(share));
}

absl::StatusOr<LivePlan> planBefore(const model::RunState& state) {
    const absl::StatusOr<LiveJob> job = liveJob(state);
    if (!job.ok()) return job.status();
    if (state.shardBefore.size() != job->expertShard.size())
        return absl::FailedPreconditionError("no expert of this job has moved yet");
    return livePlan(*job, state.shardBefore, state.shareBefore);
}

absl::StatusOr<LivePlan> planProposed(const model::RunState& state) {
    const absl::StatusOr<LiveJob> job = liveJob(state);
    if (!job.ok()) return job.status();
    if (state.proposals.empty())
        return absl::FailedPreconditionError("the backend has proposed no plan for this job");
    const model::PlanProposed& plan = state.proposals.back().plan;
    if (plan.layout != state.layout || plan.expertShard.size() != job->expertShard.size())
        return absl::FailedPreconditionError(
            absl::StrCat("the last proposal is for layout ", plan.layout,
                         ", and the experts have moved since, to layout ", state.layout));
    if (state.proposals.back().dismissed)
        return absl::FailedPreconditionError("the last proposal was dismissed");
    return livePlan(*job, plan.expertShard, plan.domainShare);
}

}  // namespace bulkhead::planner
