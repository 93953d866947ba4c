// SPDX-License-Identifier: Apache-2.0
#include "backend/campaign/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "backend/campaign/campaign_file.h"
#include "backend/model/command_text.h"
#include "backend/model/run_views.h"
#include "backend/model/units.h"

namespace bulkhead::campaign {
namespace {

using model::concat;
using model::FaultKind;

constexpr uint64_t kRestartWindowMs = 600'000;

/// SplitMix64 (Steele, Lea and Flood 2014): a stream for each line of the file, so that one more
/// line leaves the faults of the others as they were.
class Random {
  public:
    Random(uint64_t seed, uint64_t stream) : state_(seed + (stream + 1) * kStep) { next(); }
    uint64_t below(uint64_t n) { return n == 0 ? 0 : next() % n; }
    /// Exponential of that mean.
    double spacing(double mean) {
        const double unit = static_cast<double>(next() >> 11) * 0x1.0p-53;
        return -mean * std::log1p(-unit);
    }

  private:
    static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
    uint64_t next() {
        uint64_t x = state_ += kStep;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return x ^ (x >> 31);
    }
    uint64_t state_;
};

class Planner {
  public:
    Planner(const ParsedCampaign& parsed, const JobShape& job, uint64_t seed, uint64_t durationMs)
        : parsed_(parsed), job_(job), seed_(seed), durationMs_(durationMs) {}

    absl::StatusOr<std::vector<model::PlannedFault>> make() {
        const CampaignFile& file = parsed_.file;
        for (size_t i = 0; i < file.faults.size() && status_.ok(); ++i) {
            Random random(seed_, i);
            const uint64_t at = model::parseDuration(file.faults[i].at).value_or(0);
            if (at < durationMs_) add(concat("faults[", i, "]"), file.faults[i], at, random);
        }
        for (size_t i = 0; i < file.rates.size() && status_.ok(); ++i) spread(i);
        if (!status_.ok()) return status_;
        std::stable_sort(plan_.begin(), plan_.end(),
                         [](const auto& a, const auto& b) { return a.atMs < b.atMs; });
        return std::move(plan_);
    }

  private:
    void spread(size_t i) {
        const FaultLine& line = parsed_.file.rates[i];
        Random random(seed_, 0x10000 + i);
        const double mean = static_cast<double>(*model::parseDuration(line.every));
        double at = random.spacing(mean);
        while (at < static_cast<double>(durationMs_) && status_.ok()) {
            add(concat("rates[", i, "]"), line, static_cast<uint64_t>(at), random);
            at += random.spacing(mean);
        }
    }

    void add(const std::string& key, const FaultLine& line, uint64_t atMs, Random& random) {
        constexpr std::array<std::string_view, 4> kPhases = {"compute", "exchange", "vote",
                                                             "apply"};
        if (plan_.size() >= model::Limits::kPlannedFaults)
            return fail("duration", concat("expected at most ", model::Limits::kPlannedFaults,
                                           " faults; shorten it, or space the rates further"));
        const uint64_t replica = random.below(job_.replicas);
        const uint64_t shard = random.below(job_.shards);
        const std::string node =
            job_.nodes.empty() ? "node0" : job_.nodes[random.below(job_.nodes.size())];
        const uint64_t phase = random.below(kPhases.size());
        const auto fault = model::parseFault(
            aimed(line.fault, {concat(replica), concat("r", replica, "s", shard), node}));
        if (!fault.ok()) return fail(key + ".fault", std::string(fault.status().message()));
        model::PlannedFault planned{atMs, *fault};
        planned.spec.atPhase = line.phase == "any" ? std::string(kPhases[phase]) : line.phase;
        check(key + ".fault", planned.spec);
        plan_.push_back(std::move(planned));
    }

    void check(const std::string& key, const model::FaultSpec& fault) {
        if (fault.replica >= static_cast<int32_t>(job_.replicas))
            return fail(key, concat("the job has replicas 0 to ", job_.replicas - 1,
                                    "; name one of them, or any"));
        if (fault.shard >= static_cast<int32_t>(job_.shards))
            return fail(key, concat("its replicas have shards 0 to ", job_.shards - 1,
                                    "; name one of them, or any"));
        if (fault.node.empty() ||
            std::find(job_.nodes.begin(), job_.nodes.end(), fault.node) != job_.nodes.end())
            return;
        fail(key, concat("no node is named \"", fault.node, "\"; known: ",
                         job_.nodes.empty() ? "none has connected yet" : model::joined(job_.nodes),
                         ", or write any"));
    }

    void fail(const std::string& key, const std::string& words) {
        if (status_.ok())
            status_ = absl::InvalidArgumentError(parsed_.reader.located(concat(key, ": ", words)));
    }

    const ParsedCampaign& parsed_;
    const JobShape& job_;
    uint64_t seed_;
    uint64_t durationMs_;
    std::vector<model::PlannedFault> plan_;
    absl::Status status_;
};

/// Restarts that the plan costs each replica within ten minutes, the most.
std::map<int32_t, size_t> restartsOf(const model::CampaignStarted& plan) {
    std::map<int32_t, std::vector<uint64_t>> times;
    for (const model::PlannedFault& p : plan.plan)
        if (losesReplica(p.spec) && p.spec.replica >= 0) times[p.spec.replica].push_back(p.atMs);
    std::map<int32_t, size_t> most;
    for (const auto& [replica, at] : times)
        for (size_t first = 0, last = 0; last < at.size(); ++last) {
            while (at[last] - at[first] > kRestartWindowMs) ++first;
            most[replica] = std::max(most[replica], last - first + 1);
        }
    return most;
}

size_t countOf(const model::CampaignStarted& plan, FaultKind kind) {
    return static_cast<size_t>(
        std::count_if(plan.plan.begin(), plan.plan.end(),
                      [kind](const model::PlannedFault& p) { return p.spec.kind == kind; }));
}

}  // namespace

bool losesReplica(const model::FaultSpec& fault) {
    constexpr uint64_t kHardlyMs = 1000;
    switch (fault.kind) {
        case FaultKind::kHang:
        case FaultKind::kCutNetwork:
            return fault.durationMs == 0 || fault.durationMs >= kHardlyMs;
        case FaultKind::kKillRank:
        case FaultKind::kKillReplica:
        case FaultKind::kFlipParameter:
        case FaultKind::kKillNode:
            return true;
        default:
            return false;
    }
}

absl::StatusOr<model::CampaignStarted> makePlan(const model::CampaignText& text,
                                                const JobShape& job) {
    auto parsed = parseCampaign(text.text, text.fileName.empty() ? "campaign" : text.fileName);
    if (!parsed.ok()) return parsed.status();
    const CampaignFile& file = parsed->file;
    if (file.keepTraining >= job.replicas && job.replicas > 0)
        return absl::InvalidArgumentError(parsed->reader.located(
            concat("keep_training: expected less than the job's ", job.replicas,
                   " replicas, found ", file.keepTraining, ": no fault could take one")));
    model::CampaignStarted out;
    out.name = file.name;
    out.about = file.about;
    out.seed = text.seed.value_or(file.seed);
    out.durationMs = text.durationMs != 0 ? text.durationMs : *model::parseDuration(file.duration);
    out.settleMs = *model::parseDuration(file.settle);
    out.keepTraining = std::max(file.keepTraining == 0 ? job.replicas / 2 + 1 : file.keepTraining,
                                job.policies.minReplicas);
    out.allowLasting = text.allowLasting;
    out.criteria = {file.pass.minInjected, file.pass.minEffectiveTime,
                    model::parseDuration(file.pass.maxStall).value_or(0),
                    model::parseDuration(file.pass.maxRejoin).value_or(0)};
    auto plan = Planner(*parsed, job, out.seed, out.durationMs).make();
    if (!plan.ok()) return plan.status();
    if (plan->empty())
        return absl::InvalidArgumentError(
            parsed->reader.located(concat("duration: no fault falls into the first ",
                                          model::humanDuration(static_cast<double>(out.durationMs)),
                                          "; lengthen it or take another seed")));
    out.plan = *std::move(plan);
    return out;
}

std::vector<std::string> lastingOf(const model::CampaignStarted& plan, const JobShape& job) {
    std::vector<std::string> out;
    if (const size_t n = countOf(plan, FaultKind::kFlipGradient); n > 0)
        out.push_back(concat(n, " flipped gradient", n == 1 ? "" : "s",
                             ": all replicas sum what is wrong, and it stays in the weights"));
    if (const size_t n = countOf(plan, FaultKind::kKillNode); n > 0)
        out.push_back(concat(n, " killed node", n == 1 ? "" : "s",
                             ": the agent returns only where a supervisor starts it again"));
    if (job.policies.restartLimit == 0) return out;
    for (const auto& [replica, restarts] : restartsOf(plan))
        if (restarts > job.policies.restartLimit)
            out.push_back(concat("replica ", replica, " would be lost ", restarts,
                                 " times within ten minutes, and is given up after restart_limit ",
                                 job.policies.restartLimit));
    return out;
}

std::string effectOf(const model::CampaignStarted& plan, const JobShape& job) {
    std::string kinds;
    constexpr std::array<std::pair<FaultKind, std::string_view>, 11> kWords = {{
        {FaultKind::kKillRank, "rank killed"},
        {FaultKind::kKillReplica, "replica killed"},
        {FaultKind::kKillNode, "node killed"},
        {FaultKind::kHang, "hang"},
        {FaultKind::kCutNetwork, "network cut"},
        {FaultKind::kDelayNetwork, "network delayed"},
        {FaultKind::kSlow, "slowed"},
        {FaultKind::kFlipParameter, "parameter flipped"},
        {FaultKind::kFlipGradient, "gradient flipped"},
        {FaultKind::kNanGradient, "NaN gradient"},
        {FaultKind::kFillDisk, "disk filled"},
    }};
    for (const auto& [kind, word] : kWords)
        if (const size_t n = countOf(plan, kind); n > 0)
            kinds += concat(kinds.empty() ? "" : ", ", n, "\u00a0\u00d7\u00a0", word);
    return concat(plan.plan.size(), " faults within ",
                  model::humanDuration(static_cast<double>(plan.durationMs)), ": ", kinds,
                  ". A fault that would leave fewer than ", plan.keepTraining, " of ", job.replicas,
                  " replicas training is held back. Then what lasts is ended, and at most ",
                  model::humanDuration(static_cast<double>(plan.settleMs)),
                  " pass until all are back and the verdict is given. Stop it at any time.");
}

}  // namespace bulkhead::campaign
