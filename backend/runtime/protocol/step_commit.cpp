// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/step_commit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numbers>

#include "backend/runtime/protocol/data_ledger.h"

namespace bulkhead::protocol {
namespace {

/// Bit for bit, so that "the same sum" means the same; two not-a-numbers may differ in payload.
bool sameSquares(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i)
        if (std::bit_cast<uint64_t>(a[i]) != std::bit_cast<uint64_t>(b[i]) &&
            (std::isfinite(a[i]) || std::isfinite(b[i])))
            return false;
    return true;
}

bool finite(const std::vector<double>& squares) {
    return std::all_of(squares.begin(), squares.end(), [](double x) { return std::isfinite(x); });
}

/// Those who hold another sum than the largest group; on a tie, than the group of the lowest id.
std::vector<int32_t> minority(const std::vector<const ReplicaVote*>& votes) {
    std::vector<std::pair<const ReplicaVote*, size_t>> groups;
    for (const ReplicaVote* v : votes) {
        auto it = std::find_if(groups.begin(), groups.end(), [&](const auto& g) {
            return sameSquares(g.first->gradSquares, v->gradSquares);
        });
        if (it == groups.end())
            groups.emplace_back(v, 1);
        else
            ++it->second;
    }
    const auto largest =
        std::max_element(groups.begin(), groups.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    std::vector<int32_t> out;
    for (const ReplicaVote* v : votes)
        if (!sameSquares(v->gradSquares, largest->first->gradSquares)) out.push_back(v->replica);
    return out;
}

}  // namespace

Ballot ballotOf(const Quorum& quorum) {
    Ballot ballot;
    for (const Member& m : quorum.contributors) {
        ballot.contributors.push_back(m.contribution.replica);
        if (m.entering) ballot.entering.insert(m.contribution.replica);
    }
    return ballot;
}

BallotResult readBallot(const Ballot& ballot) {
    BallotResult result;
    std::vector<const ReplicaVote*> survivors;
    for (int32_t r : ballot.contributors) {
        if (ballot.lost.contains(r)) continue;
        const auto it = ballot.votes.find(r);
        if (it == ballot.votes.end()) {
            result.waitingFor.push_back(r);
            continue;
        }
        if (!it->second.complete) result.hopeless = true;
        if (ballot.entering.contains(r)) continue;  // it has no say in what the sum is worth
        survivors.push_back(&it->second);
        if (it->second.nonFiniteLocal) result.nonFinite.push_back(r);
    }
    if (!result.waitingFor.empty()) return result;
    if (survivors.empty()) {
        result.verdict = BallotVerdict::kNobody;
        return result;
    }
    result.verdict = BallotVerdict::kRedo;
    if (result.hopeless) return result;
    result.disagreeing = minority(survivors);
    if (!result.disagreeing.empty()) return result;
    result.verdict = BallotVerdict::kCommit;
    result.nonFiniteSum = !finite(survivors.front()->gradSquares);
    return result;
}

std::optional<int32_t> mostBlamed(const Ballot& ballot) {
    std::map<int32_t, size_t> pairs;
    for (const auto& [a, b] : ballot.failedPairs) {
        if (ballot.lost.contains(a) || ballot.lost.contains(b)) continue;
        ++pairs[a];
        ++pairs[b];
    }
    std::optional<int32_t> worst;
    size_t most = 0;
    for (const auto& [replica, count] : pairs)
        if (count >= most) {
            most = count;
            worst = replica;
        }
    return worst;
}

double scheduledLearningRate(const Optimizer& o, uint64_t update) {
    if (o.warmupSteps > 0 && update <= o.warmupSteps)
        return o.learningRate * static_cast<double>(update) / static_cast<double>(o.warmupSteps);
    if (o.decaySteps <= o.warmupSteps) return o.learningRate;
    const double done = std::min(1.0, static_cast<double>(update - o.warmupSteps) /
                                          static_cast<double>(o.decaySteps - o.warmupSteps));
    return o.minLearningRate +
           (o.learningRate - o.minLearningRate) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

double gradientNorm(const std::vector<double>& gradSquares, double divisor) {
    double sum = 0;
    for (double s : gradSquares) sum += s;
    return std::sqrt(sum) / divisor;
}

uint32_t floatBits(double value) {
    return std::bit_cast<uint32_t>(static_cast<float>(value));
}
double fromFloatBits(uint32_t bits) {
    return std::bit_cast<float>(bits);
}

CommitRecord makeRecord(const RecordInputs& in, const Options& options) {
    const Quorum& q = *in.quorum;
    CommitRecord r;
    r.lineage = in.lineage;
    r.term = in.term;
    r.step = q.step;
    r.epoch = q.epoch;
    r.attempt = q.attempt;
    r.layout = q.layout;
    for (const Member& m : q.contributors) {
        if (m.entering) continue;
        r.contributors.push_back(m.contribution);
        r.samples += sampleCount(m.contribution.ranges);
    }
    r.tokens = r.samples * options.sequenceLength;
    r.skip = in.nonFiniteSum;
    r.updates = in.updatesBefore + (r.skip ? 0 : 1);
    const double divisor = std::max<double>(1, static_cast<double>(r.tokens));
    r.divisorBits = floatBits(divisor);
    r.lrFactorBits = floatBits(q.lrFactor);
    const double limit = options.optimizer ? options.optimizer->clipNorm : options.clipNorm;
    const double norm = gradientNorm(*in.gradSquares, divisor);
    const bool clips = limit > 0 && std::isfinite(norm) && norm > limit;
    r.gradScaleBits = floatBits((clips ? limit / norm : 1) / divisor);
    if (!options.optimizer) return r;
    const Optimizer& o = *options.optimizer;
    const uint64_t update = std::max<uint64_t>(1, r.updates);
    r.learningRateBits = floatBits(scheduledLearningRate(o, update) * q.lrFactor);
    r.biasCorrection1Bits = floatBits(1 - std::pow(o.beta1, static_cast<double>(update)));
    r.biasCorrection2Bits = floatBits(1 - std::pow(o.beta2, static_cast<double>(update)));
    return r;
}

double meanLoss(const std::vector<ReplicaVote>& votes) {
    double lossSum = 0;
    uint64_t tokens = 0;
    for (const ReplicaVote& vote : votes) {
        lossSum += vote.lossSum;
        tokens += vote.tokens;
    }
    return tokens > 0 ? lossSum / static_cast<double>(tokens) : 0;
}

namespace {

/// Each weighs as many tokens as it computed; ascending by name.
std::vector<Scalar> meanScalars(const std::vector<ReplicaVote>& votes) {
    std::map<std::string, std::pair<double, double>> sums;
    for (const ReplicaVote& vote : votes)
        for (const Scalar& scalar : vote.scalars) {
            if (sums.size() >= Scalar::kMost && !sums.contains(scalar.name)) continue;
            auto& [sum, weight] = sums[scalar.name];
            const auto tokens = std::max<double>(1, static_cast<double>(vote.tokens));
            sum += scalar.value * tokens;
            weight += tokens;
        }
    std::vector<Scalar> means;
    for (const auto& [name, sum] : sums) means.push_back({name, sum.first / sum.second});
    return means;
}

}  // namespace

fact::StepCommitted stepLine(const CommitRecord& record, const StepFigures& figures) {
    fact::StepCommitted line;
    line.record = record;
    line.gradNorm = figures.gradNorm;
    line.learningRate = fromFloatBits(record.learningRateBits);
    line.stepMs = figures.stepMs;
    line.effectiveTime = figures.effectiveTime;
    line.votes = figures.votes;
    if (line.stepMs > 0)
        line.tokensPerSecond = static_cast<double>(record.tokens) * 1000 / line.stepMs;
    line.parity = figures.parity;
    line.loss = meanLoss(figures.votes);
    line.scalars = meanScalars(figures.votes);
    std::vector<double> domainSum;
    std::vector<uint64_t> domainTokens;
    for (const ReplicaVote& vote : figures.votes) {
        domainSum.resize(std::max(domainSum.size(), vote.domainLossSum.size()));
        domainTokens.resize(std::max(domainTokens.size(), vote.domainTokens.size()));
        for (size_t d = 0; d < vote.domainLossSum.size(); ++d)
            domainSum[d] += vote.domainLossSum[d];
        for (size_t d = 0; d < vote.domainTokens.size(); ++d)
            domainTokens[d] += vote.domainTokens[d];
    }
    for (size_t d = 0; d < domainSum.size(); ++d)
        line.domainLoss.push_back(d < domainTokens.size() && domainTokens[d] > 0
                                      ? domainSum[d] / static_cast<double>(domainTokens[d])
                                      : -1);
    return line;
}

StepFigures forLog(StepFigures figures) {
    for (size_t i = 0; i < figures.votes.size(); ++i) {
        ReplicaVote& vote = figures.votes[i];
        vote.expertCounts.clear();
        vote.routed.clear();
        if (i == 0) continue;
        vote.hashes.clear();
        vote.gradSquares.clear();
    }
    return figures;
}

}  // namespace bulkhead::protocol
