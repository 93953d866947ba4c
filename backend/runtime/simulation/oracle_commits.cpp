// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "backend/runtime/simulation/describe.h"
#include "backend/runtime/simulation/oracle.h"

/// Rules for the log's records: whose sums, which samples, dealt to whom, which figures.
namespace bulkhead::simulation {
namespace {

std::string rangeName(const SampleRange& r) {
    return absl::StrCat("samples [", r.begin, ", ", r.end, ") of domain ", r.domain);
}

bool near(uint32_t bits, double expected) {
    const double value = std::bit_cast<float>(bits);
    return std::abs(value - expected) <= 1e-6 * std::max(std::abs(value), std::abs(expected));
}

}  // namespace

void Oracle::openLineage(const LogLineage& e) {
    if (const auto known = judged_.find({e.lineage, e.fromStep}); known != judged_.end()) {
        truths_.insert(*known);
        return;
    }
    if (!judged_.empty()) return;
    Truth truth;
    truth.layout = e.layout;
    if (e.resumeFrom.empty()) {
        if (e.fromStep != 0)
            fail_("I6", absl::StrCat("lineage ", e.lineage, " begins at step ", e.fromStep,
                                     " from nothing"));
        for (uint32_t s = 0; s < options_.shards; ++s)
            truth.states.push_back(initialState(static_cast<int32_t>(s)));
    } else {
        const auto from = checkpoints_.find(e.resumeFrom);
        const Truth* then =
            from == checkpoints_.end() ? nullptr : truthAt(from->second.lineage, from->second.step);
        if (then == nullptr) {
            fail_("I6", absl::StrCat("lineage ", e.lineage, " begins from ", e.resumeFrom,
                                     ", of which nothing durable is known"));
            return;
        }
        truth = *then;
        if (e.updates != truth.updates)
            fail_("I1", absl::StrCat("lineage ", e.lineage, " counts ", e.updates,
                                     " updates, its checkpoint ", truth.updates));
        const LogCheckpoint& c = from->second;
        if (e.layout != c.layout || e.expertShard != c.expertShard ||
            e.domainShare != c.domainShare)
            fail_("I6", absl::StrCat("lineage ", e.lineage,
                                     " is laid out or dealt otherwise than its checkpoint"));
    }
    truths_[{e.lineage, e.fromStep}] = std::move(truth);
}

void Oracle::consume(const CommitRecord& r) {
    for (const Contribution& c : r.contributors)
        for (const SampleRange& range : c.ranges) {
            if (range.domain >= samples_.size() || range.begin >= range.end) {
                fail_("I2", absl::StrCat(stepName(r), " names ", rangeName(range)));
                continue;
            }
            auto& domain = samples_[range.domain];
            if (domain.size() < range.end) domain.resize(range.end);
            for (uint64_t s = range.begin; s < range.end; ++s) {
                if (domain[s].use == Use::kCommitted)
                    fail_("I2", absl::StrCat(stepName(r), " consumes sample ", s, " of domain ",
                                             range.domain, " again, by r", c.replica, "; step ",
                                             domain[s].step, " had it"));
                if (domain[s].use == Use::kQuarantined)
                    fail_("I2", absl::StrCat(stepName(r), " consumes sample ", s, " of domain ",
                                             range.domain, ", which is quarantined"));
                domain[s] = {Use::kCommitted, r.step};
            }
        }
    for (const Contribution& c : r.contributors) {
        contributed_[{c.replica, c.incarnation}] = r.step;
        followers_.erase({c.replica, c.incarnation});
    }
    step_ = r.step;
}

void Oracle::commit(const CommitRecord& r) {
    if (r.lineage != lineage_ || r.step != step_ + 1)
        fail_("I6", absl::StrCat("the record of ", stepName(r), " follows lineage ", lineage_,
                                 " step ", step_));
    const auto [it, fresh] = records_.try_emplace({r.lineage, r.step}, r);
    if (!fresh) fail_("I1", absl::StrCat("two records of ", stepName(r)));
    if (!judged_.empty()) {
        if (const auto known = judged_.find({r.lineage, r.step}); known != judged_.end())
            truths_.insert(*known);
        return consume(r);
    }
    const Truth* before = truthAt(r.lineage, r.step - 1);
    if (before == nullptr || before->states.size() != options_.shards) {
        fail_("I6", absl::StrCat(stepName(r), " has no step before it"));
        return;
    }
    ++commits_;
    if (r.layout != layout_)
        fail_("I1",
              absl::StrCat(stepName(r), " is in layout ", r.layout, ", the log in ", layout_));
    Truth after{{}, r.layout, before->updates + (r.skip ? 0 : 1)};
    std::vector<Sum> sums;
    for (size_t s = 0; s < options_.shards; ++s) {
        const uint64_t state = stateBefore(*before, s, r.layout);
        sums.push_back(sumOf(r.contributors, r.lineage, r.step, s, state));
        after.states.push_back(simulation::applied(before->states[s], sums[s], r));
    }
    checkRecord(r, *before, sums);
    checkDealt(r);
    checkBaseline(r);
    truths_[{r.lineage, r.step}] = std::move(after);
    consume(r);
    trim();
}

/// The shards of a contributor computed each sample of its ranges once, dealt as the log says.
void Oracle::checkDealt(const CommitRecord& r) {
    const Announcement* announced = announcementOf(r);
    if (announced != nullptr && announced->quorum.domainShare != domainShare_)
        fail_("I2", absl::StrCat(stepName(r), " was dealt otherwise than the log says"));
    for (const Contribution& c : r.contributors) {
        Sum sum{};
        for (uint32_t s = 0; s < options_.shards; ++s) {
            const auto part =
                dealt_.find({r.lineage, r.step, c.replica, c.incarnation, static_cast<int32_t>(s)});
            if (part != dealt_.end())
                add(sum, part->second);
            else if (!c.ranges.empty())
                fail_("I2", absl::StrCat("r", c.replica, "s", s, " contributed to ", stepName(r),
                                         " and computed nothing for it"));
        }
        if (sum != gradientOf(0, c.ranges))
            fail_("I2", absl::StrCat("the shards of r", c.replica,
                                     " did not compute each sample of ", stepName(r), " once"));
    }
}

/// With recovery = restart_all nobody goes on without whoever was lost.
void Oracle::checkBaseline(const CommitRecord& r) {
    const auto before = records_.find({r.lineage, r.step - 1});
    if (options_.policies.recovery != RecoveryPolicy::kRestartAll || before == records_.end() ||
        before->second.term != r.term)  // nobody decides on replicas lost with a coordinator
        return;
    for (const Contribution& c : before->second.contributors) {
        const bool goesOn =
            std::any_of(r.contributors.begin(), r.contributors.end(), [&](const Contribution& o) {
                return o.replica == c.replica && o.incarnation == c.incarnation;
            });
        const auto gone = expelled_.find({c.replica, c.incarnation});
        if (!goesOn && gone != expelled_.end() && gone->second == r.term &&
            !drainedOut_.contains({c.replica, c.incarnation}))
            fail_("orders", absl::StrCat(stepName(r), " goes on without r", c.replica,
                                         ", though everybody is to restart"));
    }
}

/// Everything the record fixes, worked out again from what was announced and summed.
void Oracle::checkRecord(const CommitRecord& r, const Truth& before, const std::vector<Sum>& sums) {
    const auto wrong = [&](const char* what, double is, double expected) {
        fail_("I1", absl::StrCat("the record of ", stepName(r), " has ", what, " ", is,
                                 " instead of ", expected));
    };
    uint64_t samples = 0;
    for (const Contribution& c : r.contributors)
        for (const SampleRange& range : c.ranges) samples += range.end - range.begin;
    const uint64_t tokens = samples * options_.sequenceLength;
    const auto number = [](uint64_t v) { return static_cast<double>(v); };
    if (r.samples != samples) wrong("samples", number(r.samples), number(samples));
    if (r.tokens != tokens) wrong("tokens", number(r.tokens), number(tokens));
    const bool overflow = overflowed_.contains({r.term, {r.step, r.epoch, r.attempt}});
    if (r.skip != overflow) wrong("skip", r.skip, overflow);
    const uint64_t updates = before.updates + (overflow ? 0 : 1);
    if (r.updates != updates) wrong("updates", number(r.updates), number(updates));
    const double divisor = std::max(1.0, number(tokens));
    if (!near(r.divisorBits, divisor))
        wrong("divisor", std::bit_cast<float>(r.divisorBits), divisor);
    double factor = 1;
    if (const Announcement* a = announcementOf(r)) factor = a->factor;
    if (!near(r.lrFactorBits, factor))
        wrong("LR factor", std::bit_cast<float>(r.lrFactorBits), factor);
    const Optimizer& o = *options_.optimizer;
    const double update = std::max(1.0, number(updates));
    double rate = o.learningRate;
    if (update <= number(o.warmupSteps)) {
        rate *= update / number(o.warmupSteps);
    } else {
        const double done =
            std::min(1.0, (update - number(o.warmupSteps)) / number(o.decaySteps - o.warmupSteps));
        rate = o.minLearningRate +
               (o.learningRate - o.minLearningRate) * (1 + std::cos(std::numbers::pi * done)) / 2;
    }
    if (!near(r.learningRateBits, rate * factor))
        wrong("learning rate", std::bit_cast<float>(r.learningRateBits), rate * factor);
    double squares = 0;
    for (const Sum& s : sums) squares += squaresOf(s);
    const double norm = std::sqrt(squares) / divisor;
    const double clip = norm > o.clipNorm && !overflow ? o.clipNorm / norm : 1;
    if (!near(r.gradScaleBits, clip / divisor))
        wrong("gradient scale", std::bit_cast<float>(r.gradScaleBits), clip / divisor);
    if (!near(r.biasCorrection1Bits, 1 - std::pow(o.beta1, update)))
        wrong("first bias correction", std::bit_cast<float>(r.biasCorrection1Bits),
              1 - std::pow(o.beta1, update));
    if (!near(r.biasCorrection2Bits, 1 - std::pow(o.beta2, update)))
        wrong("second bias correction", std::bit_cast<float>(r.biasCorrection2Bits),
              1 - std::pow(o.beta2, update));
}

}  // namespace bulkhead::simulation
