// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/quorum.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace bulkhead::protocol {
namespace {

using Stand = QuorumCandidate::Stage;

std::string seconds(MonoNs ns) {
    return absl::StrFormat("%.1f s", static_cast<double>(ns) / static_cast<double>(kSecond));
}

enum class Part { kNone, kEnters, kContributes };

Part partOf(const QuorumCandidate& c, const QuorumState& state) {
    if (!c.expected || c.leaving || c.suspected) return Part::kNone;
    if (c.stage == Stand::kUpToDate) return Part::kContributes;
    if (c.stage != Stand::kFollowing || !c.proven || c.step < state.committed) return Part::kNone;
    // Its report of the last commit is also its word that it lives: whoever hangs while it catches
    // up never comes so far. What is in flight it must get as the contributors do.
    const bool inFlight = state.step > state.committed + 1;
    return inFlight && !c.exchanges ? Part::kEnters : Part::kContributes;
}

const char* stageName(Stand stage) {
    switch (stage) {
        case Stand::kGone:
            return "not running";
        case Stand::kStarting:
            return "starting";
        case Stand::kCatchingUp:
            return "catching up";
        case Stand::kFollowing:
            return "following, not yet proven";
        case Stand::kUpToDate:
            return "up to date";
    }
    return "?";
}

std::string describe(MonoNs now, const QuorumCandidate& c) {
    std::string text = absl::StrCat("r", c.replica, " (");
    if (c.unheardOn)
        absl::StrAppend(&text, "not heard since the coordinator before; the agent of ",
                        c.unheardOn->empty() ? "its node" : *c.unheardOn, " is away");
    else
        absl::StrAppend(&text, c.suspected ? "suspected" : stageName(c.stage));
    // The beats of the others would read as if it were there.
    if (c.heard > 0 && c.heard < c.ranks)
        absl::StrAppend(&text, ", ", c.heard, " of ", c.ranks, " ranks ",
                        c.heard == 1 ? "is" : "are", " heard of");
    if (c.lastBeat != 0) absl::StrAppend(&text, ", last beat ", seconds(now - c.lastBeat), " ago");
    return text + ")";
}

std::string describeAll(MonoNs now, const std::vector<const QuorumCandidate*>& waited) {
    return absl::StrJoin(waited, ", ", [now](std::string* out, const QuorumCandidate* c) {
        out->append(describe(now, *c));
    });
}

/// Explains an undecided quorum: who does not answer, what is at stake, and when it is taken for
/// lost.
std::string explainSuspects(MonoNs now, const QuorumState& state) {
    std::vector<const QuorumCandidate*> suspects;
    MonoNs lostAt = 0;
    const QuorumCandidate* alone = nullptr;
    for (const QuorumCandidate& c : state.candidates) {
        if (!c.suspected) continue;
        suspects.push_back(&c);
        if (c.alone) alone = &c;
        if (c.lostAt != 0) lostAt = lostAt == 0 ? c.lostAt : std::min(lostAt, c.lostAt);
    }
    if (alone != nullptr) suspects = {alone};
    std::string text = absl::StrCat("paused: ", describeAll(now, suspects));
    if (alone != nullptr)
        absl::StrAppend(&text, " does not answer, and nobody else holds step ", state.committed);
    else if (suspects.size() == 1)
        absl::StrAppend(&text, " does not answer, and its agent does not confirm its death");
    else
        absl::StrAppend(&text,
                        " do not answer, half of the job or more, and their agents do not "
                        "confirm their deaths");
    if (lostAt == 0)
        return absl::StrCat(text, suspects.size() == 1
                                      ? "; the job waits until it answers or is gone"
                                      : "; the job waits until one answers or all are gone");
    absl::StrAppend(&text, "; taken for lost in ", seconds(std::max<MonoNs>(0, lostAt - now)));
    if (alone != nullptr)
        absl::StrAppend(&text, ", and then the job goes back to ",
                        state.checkpoint == 0
                            ? std::string("its start: there is no checkpoint")
                            : absl::StrCat("the checkpoint of step ", state.checkpoint));
    return text;
}

void explainIssue(const QuorumState& state, const Options& options, QuorumDecision& d) {
    d.explanation = absl::StrCat(
        "step ", state.step, ": ", d.contributors.size(), " of ", options.replicas, " contribute (",
        absl::StrJoin(d.contributors, ", ",
                      [](std::string* out, int32_t r) { absl::StrAppend(out, "r", r); }),
        ")");
    if (!d.joiners.empty())
        absl::StrAppend(
            &d.explanation,
            "; joining: ", absl::StrJoin(d.joiners, ", ", [&](std::string* out, int32_t r) {
                const bool enters = std::binary_search(d.entering.begin(), d.entering.end(), r);
                absl::StrAppend(out, "r", r, enters ? " (exchanges, contributes next)" : "");
            }));
    if (!d.reserve.empty())
        absl::StrAppend(&d.explanation, "; in reserve: r", absl::StrJoin(d.reserve, ", r"));
}

/// Says what an undecided quorum waits for when no replica is to come by itself.
std::string whatElse(const QuorumState& state) {
    for (const QuorumCandidate& c : state.candidates)
        if (c.leaving && c.alone)
            return absl::StrCat("a checkpoint of step ", state.committed, ": nobody but r",
                                c.replica, " holds it, which leaves then (", *c.leaving, ")");
    std::vector<std::string> out;
    for (const QuorumCandidate& c : state.candidates)
        if (c.stage == QuorumCandidate::Stage::kGone && (!c.expected || c.leaving))
            out.push_back(absl::StrCat("r", c.replica));
    return absl::StrCat("an operator to release ", absl::StrJoin(out, ", "),
                        state.givenUpWhy.empty() ? "" : ", the last one ", state.givenUpWhy);
}

/// Limits candidates to the job's places: no training replica gives way to a returning one.
void keepReserve(const QuorumState& state, const Options& options, QuorumDecision& d) {
    const auto follows = [&](int32_t replica) {
        return std::any_of(state.candidates.begin(), state.candidates.end(), [&](const auto& c) {
            return c.replica == replica && c.stage == Stand::kFollowing;
        });
    };
    const auto cut = [&](std::vector<int32_t>& from, size_t places) {
        if (from.size() <= places) return;
        d.reserve.insert(d.reserve.end(), from.begin() + static_cast<ptrdiff_t>(places),
                         from.end());
        from.resize(places);
    };
    std::stable_partition(d.contributors.begin(), d.contributors.end(),
                          [&](int32_t replica) { return !follows(replica); });
    cut(d.contributors, options.replicas);
    cut(d.entering, options.replicas - d.contributors.size());
    std::sort(d.contributors.begin(), d.contributors.end());
    std::sort(d.reserve.begin(), d.reserve.end());
    std::erase_if(d.joiners, [&](int32_t replica) {
        return std::binary_search(d.reserve.begin(), d.reserve.end(), replica);
    });
}

}  // namespace

double lrFactor(const Options& options, size_t contributors) {
    if (options.policies.batch == BatchPolicy::kConstant || options.replicas == 0) return 1;
    const double share = static_cast<double>(contributors) / options.replicas;
    switch (options.policies.lr) {
        case LrPolicy::kNone:
            return 1;
        case LrPolicy::kLinear:
            return share;
        case LrPolicy::kSqrt:
            return std::sqrt(share);
    }
    return 1;
}

std::vector<uint64_t> samplesPerContributor(const Options& options, size_t contributors) {
    std::vector<uint64_t> samples(contributors, options.samplesPerReplica);
    if (options.policies.batch == BatchPolicy::kShrink) return samples;
    const uint64_t whole = uint64_t{options.samplesPerReplica} * options.replicas;
    for (size_t i = 0; i < contributors; ++i)
        samples[i] = whole / contributors + (i < whole % contributors ? 1 : 0);
    return samples;
}

QuorumDecision quorumCompute(MonoNs now, const QuorumState& state, const Options& options) {
    QuorumDecision d;
    std::vector<const QuorumCandidate*> waited;
    for (const QuorumCandidate& c : state.candidates) {
        const Part part = partOf(c, state);
        if (part == Part::kContributes) {
            d.contributors.push_back(c.replica);
            continue;
        }
        if (part == Part::kEnters) d.entering.push_back(c.replica);
        if (!c.expected || c.leaving) continue;
        waited.push_back(&c);
        if (c.stage == Stand::kCatchingUp || c.stage == Stand::kFollowing)
            d.joiners.push_back(c.replica);
    }
    keepReserve(state, options, d);
    d.lrFactor = lrFactor(options, d.contributors.size());
    if (state.paused) {
        d.explanation = "paused by the operator; resume goes on";
        return d;
    }
    if (std::any_of(state.candidates.begin(), state.candidates.end(),
                    [](const QuorumCandidate& c) { return c.suspected; })) {
        d.explanation = explainSuspects(now, state);
        return d;
    }
    const size_t needed = std::max<size_t>(1, options.policies.minReplicas);
    const MonoNs joinBy = state.begun + options.timeouts.joinMs * kMillisecond;
    const bool awaited =
        std::any_of(waited.begin(), waited.end(), [](const auto* c) { return c->awaited; });
    if (state.first && awaited && now < joinBy) {
        d.decideAgain = joinBy;
        d.explanation =
            absl::StrCat("step ", state.step, ": waiting for ", describeAll(now, waited), ", ",
                         seconds(joinBy - now), " left");
        return d;
    }
    if (d.contributors.size() < needed) {
        d.explanation =
            absl::StrCat("step ", state.step, ": ", d.contributors.size(), " of at least ", needed,
                         " replicas can contribute; waiting for ",
                         waited.empty() ? whatElse(state) : describeAll(now, waited));
        return d;
    }
    if (state.waitFor && now < state.waitFor->second &&
        !std::binary_search(d.contributors.begin(), d.contributors.end(), state.waitFor->first)) {
        const auto [replica, until] = *state.waitFor;
        d.decideAgain = until;
        d.explanation = absl::StrCat(
            "step ", state.step, ": waiting for r", replica, ", ", seconds(until - now),
            " left: it catches up no faster than the others train, and would never get there");
        return d;
    }
    d.issue = true;
    explainIssue(state, options, d);
    return d;
}

}  // namespace bulkhead::protocol
