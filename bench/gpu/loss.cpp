// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "backend/common/clock.h"
#include "backend/common/fields.h"
#include "bench/gpu/measures.h"
#include "tests/replica/mini_job.h"

namespace bulkhead::bench {
namespace {

using protocol::EvidenceKind;
using protocol::fact::EvidenceSeen;
using protocol::fact::QuorumDecided;
using protocol::fact::StepCommitted;

constexpr uint64_t kWarm = 20;  // steps before the loss
constexpr int32_t kVictim = 2;
constexpr double kLossAim = 100;  // milliseconds beside one exchange
constexpr double kRejoinAim = 1;  // percent of a step
constexpr uint64_t kWarmOfBase = 5;
constexpr MonoNs kComesBack = 60 * kSecond;

/// Milliseconds: of the kill -9 of one replica, one part after another, by the coordinator's clock.
struct Loss {
    double stall = 0;     ///< the others lose so much by it, beyond the step they are in
    double exchange = 0;  ///< of a step before, without what members waited for each other
    std::map<EvidenceKind, double> signs;  ///< from the kill to the first sign of each kind
    double decision = 0;                   ///< from the first sign of all to the new membership
    double connection = 0;  ///< ... until the last survivor is connected and begins its sum
    double sum = 0;         ///< ... until the last vote on it is there
    double commit = 0;      ///< ... until the step is committed
    double end = 0;  ///< from the kill to the process's end, its memory on the GPU given back
};

/// The one that came last waited for nobody.
double exchangeOf(const std::vector<StepCommitted>& steps) {
    std::vector<double> ms;
    for (const StepCommitted& step : steps) {
        if (step.record.step <= kWarm) continue;
        double least = step.votes.front().exchangeMs;
        for (const auto& vote : step.votes) least = std::min(least, vote.exchangeMs);
        ms.push_back(least);
    }
    return spreadOf(ms).median;
}

/// `end`: the first commit without the victim.
Loss partsOf(const runtime::MiniJob& job, MonoNs killed,
             const runtime::MiniJob::Timed<StepCommitted>& end) {
    Loss loss;
    MonoNs sign = end.at;
    for (const auto& seen : job.timedFacts<EvidenceSeen>()) {
        if (seen.at < killed || seen.fact.replica != kVictim) continue;
        loss.signs.emplace(seen.fact.kind, inMs(seen.at - killed));
        sign = std::min(sign, seen.at);
    }
    MonoNs decided = sign;
    for (const auto& quorum : job.timedFacts<QuorumDecided>())
        if (quorum.fact.step == end.fact.record.step) decided = std::max(decided, quorum.at);
    MonoNs begun = decided, voted = decided;
    for (size_t i = 0; i < end.fact.votes.size(); ++i) {
        const auto at = [&](double before) {
            return end.at - static_cast<MonoNs>(before * kMillisecond);
        };
        voted = std::max(voted, at(end.fact.voteMs[i]));
        begun = std::max(begun, at(end.fact.voteMs[i] + end.fact.votes[i].exchangeMs));
    }
    loss.decision = inMs(decided - sign);
    loss.connection = inMs(begun - decided);
    loss.sum = inMs(voted - begun);
    loss.commit = inMs(end.at - voted);
    return loss;
}

Loss lossOf(const model::JobSpec& spec, const std::string& folder) {
    const SystemClock clock;
    runtime::MiniJob job(spec, folder);
    const auto must = [&](bool reached) {
        if (!reached) die(absl::DeadlineExceededError(job.output()));
    };
    must(job.runToStep(kWarm));
    const MonoNs began = clock.now();
    must(job.runToStep(2 * kWarm));
    const double step = inMs(clock.now() - began) / kWarm;
    const double exchange = exchangeOf(job.facts<StepCommitted>());
    const MonoNs killed = clock.now();
    job.kill({kVictim, 0}, SIGKILL);
    std::optional<MonoNs> ended;
    const auto hasEnded = [&] {
        if (!ended && !job.exits().empty()) ended = clock.now();
        return ended.has_value();
    };
    must(job.runUntil([&] {
        (void)hasEnded();
        return job.facts<StepCommitted>().back().votes.size() < spec.replicas;
    }));
    const runtime::MiniJob::Timed<StepCommitted> end = job.timedFacts<StepCommitted>().back();
    must(job.runUntil(hasEnded));
    Loss loss = partsOf(job, killed, end);
    loss.end = inMs(*ended - killed);
    loss.stall = inMs(end.at - killed) - step;
    loss.exchange = exchange;
    return loss;
}

void rows(const std::vector<Loss>& losses, Report& report) {
    const auto row = [&](const std::string& what, const std::vector<double>& ms) {
        report.row({what, "", "", "", cell(spreadOf(ms))});
    };
    const auto part = [&](const std::string& what, double Loss::*member) {
        std::vector<double> ms;
        for (const Loss& loss : losses) ms.push_back(loss.*member);
        row(what, ms);
        return spreadOf(ms).median;
    };
    const double stall = part("kill -9 of one of four on this GPU: survivors' stall", &Loss::stall);
    const double exchange = part("an exchange of the four before", &Loss::exchange);
    std::map<EvidenceKind, std::vector<double>> signs;
    for (const Loss& loss : losses)
        for (const auto& [kind, ms] : loss.signs) signs[kind].push_back(ms);
    for (const auto& [kind, ms] : signs)
        row(absl::StrCat("from the kill to a first sign: ", std::string(enumName(kind)), ", in ",
                         ms.size(), " of ", losses.size()),
            ms);
    part("from the first sign of all to the new membership", &Loss::decision);
    part("from there until the last survivor's sum begins", &Loss::connection);
    part("from there until the last vote", &Loss::sum);
    part("from there until the commit", &Loss::commit);
    part("from the kill to the end of the killed process", &Loss::end);
    report.atMost("survivors' stall after kill -9 of one of four", stall, kLossAim + exchange,
                  "ms");
}

/// A job of `base`, whose replicas share this GPU.
model::JobSpec baseJob(const std::string& folder, uint32_t replicas) {
    model::JobSpec spec = runtime::tinyJob(folder);
    spec.device = "cuda";
    spec.replicas = replicas;
    spec.shards = 1;
    spec.modelToml = "size = \"base\"\n";
    spec.sequenceLength = 2048;
    spec.samplesPerReplica = 32;
    spec.microBatch = 8;
    spec.policies.parityEverySteps = 0;
    return spec;
}

/// Milliseconds from one commit to the next, of replica 0 alone, between the two times.
std::vector<double> stepsAlone(const runtime::MiniJob& job, MonoNs begin, MonoNs end) {
    std::vector<double> ms;
    MonoNs before = 0;
    for (const auto& step : job.timedFacts<StepCommitted>()) {
        if (before >= begin && step.at < end && step.fact.votes.size() == 1)
            ms.push_back(inMs(step.at - before));
        before = step.at;
    }
    return ms;
}

/// The jobs of these two have ended, with all their processes, when they return.
absl::StatusOr<std::vector<double>> alonesSteps(const std::string& folder) {
    const SystemClock clock;
    runtime::MiniJob job(baseJob(folder, 1), folder);
    if (!job.runToStep(kWarmOfBase)) return absl::DeadlineExceededError(job.output());
    const MonoNs begin = clock.now();
    if (!job.runToStep(kWarmOfBase + kWarm)) return absl::DeadlineExceededError(job.output());
    return stepsAlone(job, begin, clock.now());
}

struct Rejoin {
    double tookMs = 0;              ///< from the kill until it contributed
    double aloneMs = 0;             ///< ... of that the other's time without it
    std::vector<double> meanwhile;  ///< the other's steps, milliseconds
};

/// The log has what became of the killed replica, and when.
void tell(const runtime::MiniJob& job, MonoNs killed) {
    for (const auto& changed : job.timedFacts<protocol::fact::ReplicaChanged>())
        if (changed.at >= killed && changed.fact.replica == 1)
            std::fprintf(stderr, "%7.0f ms: %s, step %llu %s\n", inMs(changed.at - killed),
                         std::string(enumName(changed.fact.state)).c_str(),
                         static_cast<unsigned long long>(changed.fact.step),
                         changed.fact.why.c_str());
    MonoNs before = killed;
    for (const auto& step : job.timedFacts<StepCommitted>()) {
        if (step.at < killed) continue;
        std::fprintf(stderr, "%7.0f ms: step %llu of %zu, %.0f ms\n", inMs(step.at - killed),
                     static_cast<unsigned long long>(step.fact.record.step), step.fact.votes.size(),
                     inMs(step.at - before));
        before = step.at;
    }
}

absl::StatusOr<Rejoin> rejoinOf(const std::string& folder) {
    const SystemClock clock;
    runtime::MiniJob job(baseJob(folder, 2), folder);
    if (!job.runToStep(kWarmOfBase)) return absl::DeadlineExceededError(job.output());
    const MonoNs killed = clock.now();
    job.kill({1, 0}, SIGKILL);
    const auto contributors = [&] { return job.facts<StepCommitted>().back().votes.size(); };
    if (!job.runUntil([&] { return contributors() == 1; }))
        return absl::DeadlineExceededError(job.output());
    const MonoNs lost = clock.now();
    const bool came = job.runUntil([&] { return contributors() == 2; }, kComesBack);
    const MonoNs back = clock.now();
    tell(job, killed);
    if (!came) return absl::DeadlineExceededError(job.output());
    return Rejoin{inMs(back - killed), inMs(back - lost), stepsAlone(job, lost, back)};
}

}  // namespace

void measureRejoin(Report& report) {
    const std::string folder =
        (std::filesystem::temp_directory_path() / absl::StrCat("bulkhead-rejoin-", ::getpid()))
            .string();
    const std::vector<double> alone = value(alonesSteps(folder));
    std::filesystem::remove_all(folder);
    const Rejoin rejoin = value(rejoinOf(folder));
    std::filesystem::remove_all(folder);
    const Spread before = spreadOf(alone), with = spreadOf(rejoin.meanwhile);
    const auto row = [&](const std::string& what, const std::string& ms) {
        report.row({what, "", "", "", ms});
    };
    row("base alone on this GPU, a step", cell(before));
    row(absl::StrCat("base while a second replica comes back to the same GPU, ",
                     rejoin.meanwhile.size(), " steps"),
        cell(with));
    row("from its kill -9 until it contributes", number(rejoin.tookMs, 0));
    row("what the other lost by its coming back, the last step of two among it",
        number(rejoin.aloneMs - before.median * static_cast<double>(rejoin.meanwhile.size() + 1),
               0));
    report.atMost("a step while a replica comes back, beside one alone",
                  100 * (with.median / before.median - 1), kRejoinAim, "%");
}

void measureLoss(int times, Report& report) {
    const std::string folder =
        (std::filesystem::temp_directory_path() / absl::StrCat("bulkhead-loss-", ::getpid()))
            .string();
    std::vector<Loss> losses;
    for (int i = 0; i < times; ++i) {
        model::JobSpec spec = runtime::tinyJob(folder);
        spec.device = "cuda";
        spec.replicas = 4;
        spec.shards = 1;
        losses.push_back(lossOf(spec, folder));
        std::filesystem::remove_all(folder);
    }
    rows(losses, report);
}

}  // namespace bulkhead::bench
