// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/replica_fold.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace bulkhead::protocol {
namespace {

template <class T>
void addUp(std::vector<T>& sum, const std::vector<T>& part) {
    if (sum.size() < part.size()) sum.resize(part.size());
    for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
}

auto key(const RankVote& v) {
    return std::tuple(v.term, v.step, v.epoch, v.attempt);
}
auto key(const RankReport& r) {
    // "following" of the same step is news; so is a state where there was none, where experts lay
    // otherwise, or that comes from another fetch.
    return std::tuple(r.lineage, r.step, r.hasState, r.ready, r.following, r.layout, r.moved,
                      r.snapshotStep);
}
auto key(const RankSnapshotReady& s) {
    return std::tuple(s.step);
}
auto key(const RankVerdict& v) {
    return std::tuple(v.step);
}
auto key(const RankLayoutMoved& m) {
    return std::tuple(m.layout, m.step);
}

/// Takes the part in; true when every shard's last word is the same. Votes come in order: parts of
/// an older key are dropped, a newer one begins anew.
template <class Shards, class Part>
bool collect(Shards& shards, uint32_t count, const Part& part, bool ordered) {
    if (shards.empty()) shards.resize(count);
    for (const auto& other : shards) {
        if (!ordered || !other || key(*other) == key(part)) continue;
        if (key(part) < key(*other)) return false;
        shards.assign(count, std::nullopt);
        break;
    }
    shards[static_cast<size_t>(part.rank.shard)] = part;
    return std::all_of(shards.begin(), shards.end(),
                       [&](const auto& p) { return p && key(*p) == key(part); });
}

ReplicaVote foldVotes(const std::vector<std::optional<RankVote>>& parts) {
    ReplicaVote out;
    out.complete = true;
    out.gradSquares.resize(parts.size());
    for (size_t s = 0; s < parts.size(); ++s) {
        if (!parts[s]) {
            out.complete = false;
            continue;
        }
        const RankVote& v = *parts[s];
        ++out.shardsIn;
        out.replica = v.rank.replica;
        out.incarnation = v.incarnation;
        out.term = v.term;
        out.step = v.step;
        out.epoch = v.epoch;
        out.attempt = v.attempt;
        out.complete = out.complete && v.complete;
        out.nonFiniteLocal = out.nonFiniteLocal || v.nonFiniteLocal;
        out.gradSquares[s] = v.gradSquares;
        if (v.hash) out.hashes.push_back(*v.hash);
        out.failedPeers.insert(out.failedPeers.end(), v.failedPeers.begin(), v.failedPeers.end());
        out.lossSum += v.lossSum;
        out.tokens += v.tokens;
        addUp(out.domainLossSum, v.domainLossSum);
        addUp(out.domainTokens, v.domainTokens);
        addUp(out.expertCounts, v.expertCounts);
        addUp(out.traffic.copies, v.traffic.copies);
        addUp(out.traffic.remote, v.traffic.remote);
        out.traffic.bytes += v.traffic.bytes;
        out.routed.insert(out.routed.end(), v.routed.begin(), v.routed.end());
        out.computeMs = std::max(out.computeMs, v.computeMs);
        out.exchangeMs = std::max(out.exchangeMs, v.exchangeMs);
        out.exposedMs = std::max(out.exposedMs, v.exposedMs);
        out.applyMs = std::max(out.applyMs, v.applyMs);
        if (v.waitedOnMs > out.waitedOnMs) {
            out.waitedOnMs = v.waitedOnMs;
            out.waitedOn = v.waitedOn;
        }
        out.bytes += v.bytes;
        for (const Scalar& scalar : v.scalars)
            if (std::none_of(out.scalars.begin(), out.scalars.end(),
                             [&](const Scalar& o) { return o.name == scalar.name; }))
                out.scalars.push_back(scalar);
    }
    if (out.hashes.size() != parts.size()) out.hashes.clear();
    std::sort(out.failedPeers.begin(), out.failedPeers.end());
    out.failedPeers.erase(std::unique(out.failedPeers.begin(), out.failedPeers.end()),
                          out.failedPeers.end());
    return out;
}

}  // namespace

ReplicaFold::ReplicaFold(int32_t replica, uint32_t incarnation, uint32_t shards)
    : replica_(replica), incarnation_(incarnation), shards_(shards) {}

std::optional<ToCoordinator> ReplicaFold::addVote(const RankVote& vote) {
    const bool whole = collect(votes_, shards_, vote, true);
    const auto& mine = votes_[static_cast<size_t>(vote.rank.shard)];
    if (!mine || key(*mine) != key(vote)) return std::nullopt;
    // A shard that is stuck must not keep its siblings' "no" from the coordinator.
    if (whole || vote.nonFiniteLocal || !vote.complete) return foldVotes(votes_);
    return std::nullopt;
}

std::optional<ToCoordinator> ReplicaFold::addReport(const RankReport& report) {
    if (!collect(reports_, shards_, report, false)) return std::nullopt;
    Report out;
    out.replica = replica_;
    out.incarnation = incarnation_;
    out.lineage = report.lineage;
    out.hasState = report.hasState;
    out.step = report.step;
    out.ready = report.ready;
    out.following = report.following;
    out.layout = report.layout;
    out.moved = report.moved;
    out.last = report.last;
    out.retainedStep = report.retainedStep;
    out.retained = report.retained;
    out.computation = report.computation;
    out.snapshotStep = report.snapshotStep;
    for (const auto& part : reports_) {
        if (report.hasState && part->hash) out.hashes.push_back(*part->hash);
        if (part->retainedStep == out.retainedStep && part->retained == out.retained &&
            part->computation == out.computation)
            continue;
        out.retainedStep = 0;  // a shard that dropped its gradient makes all of them compute
    }
    if (out.hashes.size() != reports_.size()) out.hashes.clear();
    if (out.retainedStep == 0) out.retained.clear();
    return out;
}

absl::StatusOr<std::optional<ToCoordinator>> ReplicaFold::add(const ToLeader& part) {
    using Answer = std::optional<ToCoordinator>;
    return std::visit(
        [this](const auto& p) -> absl::StatusOr<Answer> {
            using Part = std::remove_cvref_t<decltype(p)>;
            if constexpr (std::same_as<Part, Relay> || std::same_as<Part, RankCheckpoint> ||
                          std::same_as<Part, GroupReady> || std::same_as<Part, GroupGo> ||
                          std::same_as<Part, GroupNever>) {
                return Answer();  // files, relays and threads are the driver's business
            } else {
                if (p.rank.replica != replica_ || p.incarnation != incarnation_ ||
                    p.rank.shard < 0 || static_cast<uint32_t>(p.rank.shard) >= shards_)
                    return absl::InvalidArgumentError(
                        absl::StrCat("r", p.rank.replica, "s", p.rank.shard, " incarnation ",
                                     p.incarnation, " speaks to the leader of r", replica_,
                                     " incarnation ", incarnation_, " with ", shards_, " shards"));
                if constexpr (std::same_as<Part, RankVote>) {
                    return addVote(p);
                } else if constexpr (std::same_as<Part, RankReport>) {
                    return addReport(p);
                } else if constexpr (std::same_as<Part, RankSnapshotReady>) {
                    if (!collect(snapshots_, shards_, p, false)) return Answer();
                    return Answer(SnapshotReady{replica_, incarnation_, p.step});
                } else if constexpr (std::same_as<Part, RankFetchProgress>) {
                    if (fetch_.empty()) fetch_.resize(shards_);
                    fetch_[static_cast<size_t>(p.rank.shard)] = p;
                    FetchProgress out{replica_, incarnation_, p.snapshotStep, 0, 0, p.step};
                    for (const auto& f : fetch_) {
                        if (!f || f->snapshotStep != p.snapshotStep) continue;
                        out.bytesDone += f->bytesDone;
                        out.bytesTotal += f->bytesTotal;
                        out.step = std::min(out.step, f->step);
                    }
                    return Answer(out);
                } else if constexpr (std::same_as<Part, RankVerdict>) {
                    if (!collect(verdicts_, shards_, p, false)) return Answer();
                    ReplayVerdict out{replica_, incarnation_, p.step, {}};
                    for (const auto& v : verdicts_) {
                        out.replayed = out.replayed && v->replayed;
                        if (v->replayed && !v->matches)
                            out.mismatchedShards.push_back(v->rank.shard);
                    }
                    out.replayed = out.replayed || !out.mismatchedShards.empty();
                    verdicts_.clear();
                    return Answer(out);
                } else {
                    if (!collect(layouts_, shards_, p, false)) return Answer();
                    LayoutMoved out{replica_, incarnation_, p.step, p.layout, true, 0, ""};
                    for (const auto& m : layouts_) {
                        out.bytesMoved += m->bytesMoved;
                        if (m->ok) continue;
                        out.ok = false;
                        if (out.error.empty()) out.error = m->error;
                    }
                    return Answer(out);
                }
            }
        },
        part);
}

}  // namespace bulkhead::protocol
