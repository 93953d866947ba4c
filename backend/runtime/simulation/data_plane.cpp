// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/data_plane.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bulkhead::simulation {
namespace {

constexpr size_t kMeetingsKept = 64;

}  // namespace

FrameKey keyOf(const Quorum& q, int32_t shard) {
    return {q.term, {q.step, q.epoch, q.attempt}, q.exchangeKey.words, shard};
}

DataPlane::Seat* DataPlane::seatOf(Meeting& m, int32_t replica, uint32_t incarnation) {
    for (Seat& s : m.seats)
        if (s.replica == replica && s.incarnation == incarnation) return &s;
    return nullptr;
}

void DataPlane::join(RankId rank, uint32_t incarnation, const Quorum& q, const Sum& part) {
    const FrameKey key = keyOf(q, rank.shard);
    auto [it, fresh] = meetings_.try_emplace(key);
    Meeting& m = it->second;
    if (fresh) {
        order_.push_back(key);
        m.timeout = static_cast<MonoNs>(q.chunkTimeoutMs) * kMillisecond;
        for (const Member& member : q.contributors)
            m.seats.push_back({member.contribution.replica, member.contribution.incarnation});
    }
    bool same = m.seats.size() == q.contributors.size();
    for (size_t i = 0; same && i < m.seats.size(); ++i)
        same = m.seats[i].replica == q.contributors[i].contribution.replica &&
               m.seats[i].incarnation == q.contributors[i].contribution.incarnation;
    if (!same)
        hooks_.broken(absl::StrCat("step ", q.step, " epoch ", q.epoch, " attempt ", q.attempt,
                                   " names two memberships"));
    Seat* seat = seatOf(m, rank.replica, incarnation);
    if (seat == nullptr || seat->side != Side::kAway) return;
    seat->side = Side::kIn;
    seat->part = part;
    for (const Seat& other : m.seats)
        if (other.side == Side::kAway &&
            !hooks_.present({other.replica, rank.shard}, other.incarnation))
            events_.at(now_ + rng_.between(0.2, 3),
                       [this, key, rank, incarnation, p = other.replica] {
                           reset(key, rank.replica, incarnation, p);
                       });
    events_.at(now_ + m.timeout,
               [this, key, r = rank.replica, incarnation] { timeout(key, r, incarnation); });
    tryReduce(key, m);
    trim();
}

void DataPlane::tryReduce(const FrameKey& key, Meeting& m) {
    if (m.reducing || m.reduced) return;
    for (const Seat& s : m.seats)
        if (s.side == Side::kAway || !s.partOut) return;
    m.reducing = true;
    events_.at(now_ + rng_.between(0.5, 4), [this, key] { reduce(key); });
}

void DataPlane::reduce(const FrameKey& key) {
    const auto it = meetings_.find(key);
    if (it == meetings_.end()) return;
    Meeting& m = it->second;
    m.reducing = false;
    for (const Seat& a : m.seats)
        for (const Seat& b : m.seats)
            if (a.replica != b.replica && isCut(a.replica, b.replica)) return;
    for (const Seat& s : m.seats)
        // An aborted rank sends no more; a dead one may just have sent all.
        if (s.side == Side::kOut || (s.dead && !s.partOut)) return;
    m.reduced = true;
    m.overflow = std::exchange(overflowNext_, false);
    for (const Seat& s : m.seats) add(m.sum, s.part);
    for (const Seat& s : m.seats)
        events_.at(now_ + rng_.between(0.3, 4),
                   [this, key, r = s.replica, i = s.incarnation] { finish(key, r, i); });
}

/// One member has everything, unless somebody whose slice it needs is gone.
void DataPlane::finish(const FrameKey& key, int32_t replica, uint32_t incarnation) {
    const auto it = meetings_.find(key);
    if (it == meetings_.end()) return;
    Meeting& m = it->second;
    Seat* seat = seatOf(m, replica, incarnation);
    if (seat == nullptr || seat->side != Side::kIn || seat->dead) return;
    for (const Seat& other : m.seats) {
        if (isCut(other.replica, replica)) return;  // its timer runs
        if (other.dead && other.side != Side::kDone && rng_.chance(0.5))
            return fail(key, *seat, EvidenceKind::kTransportReset, {other.replica});
    }
    seat->side = Side::kDone;
    hooks_.complete({replica, key.shard}, incarnation, key.id, m.sum, m.overflow);
}

void DataPlane::fail(const FrameKey& key, Seat& seat, EvidenceKind kind,
                     std::vector<int32_t> peers) {
    seat.side = Side::kOut;
    hooks_.failed({seat.replica, key.shard}, seat.incarnation, key.id, kind, peers);
}

void DataPlane::timeout(const FrameKey& key, int32_t replica, uint32_t incarnation) {
    const auto it = meetings_.find(key);
    if (it == meetings_.end()) return;
    Seat* seat = seatOf(it->second, replica, incarnation);
    if (seat == nullptr || seat->side != Side::kIn || seat->dead) return;
    std::vector<int32_t> late;
    for (const Seat& other : it->second.seats)
        if (other.replica != replica &&
            (other.side == Side::kAway || isCut(other.replica, replica) ||
             (other.dead && !it->second.reduced)))
            late.push_back(other.replica);
    // Everybody is there, but somewhere between others a chunk does not get through.
    if (late.empty() && it->second.reduced) return;
    fail(key, *seat, EvidenceKind::kChunkTimeout, std::move(late));
}

void DataPlane::reset(const FrameKey& key, int32_t replica, uint32_t incarnation, int32_t peer) {
    const auto it = meetings_.find(key);
    if (it == meetings_.end()) return;
    Seat* seat = seatOf(it->second, replica, incarnation);
    if (seat == nullptr || seat->side != Side::kIn || seat->dead) return;
    // Nobody hears a reset across a cut.
    if (isCut(peer, replica)) return;
    fail(key, *seat, EvidenceKind::kTransportReset, {peer});
}

void DataPlane::leave(RankId rank, uint32_t incarnation) {
    for (auto& [key, m] : meetings_) {
        if (key.shard != rank.shard) continue;
        Seat* seat = seatOf(m, rank.replica, incarnation);
        if (seat == nullptr || seat->side != Side::kIn) continue;
        seat->side = Side::kOut;
        if (!m.reduced || !rng_.chance(0.5)) continue;
        const size_t bucket = rng_.below(kBuckets);
        hooks_.landed(rank, incarnation, bucket, m.sum[bucket]);
    }
}

void DataPlane::died(RankId rank, uint32_t incarnation, bool silent) {
    for (auto& [key, m] : meetings_) {
        if (key.shard != rank.shard) continue;
        Seat* seat = seatOf(m, rank.replica, incarnation);
        if (seat == nullptr || seat->dead) continue;
        seat->dead = true;
        seat->partOut = m.reduced || (seat->side == Side::kIn && rng_.chance(0.5));
        if (silent || m.reduced) continue;
        for (const Seat& other : m.seats)
            if (other.side == Side::kIn && !other.dead)
                events_.at(now_ + rng_.between(0.1, 3),
                           [this, key = key, r = other.replica, i = other.incarnation,
                            peer = rank.replica] {
                               const auto it = meetings_.find(key);
                               // All it had to give was out, and the sum came first.
                               if (it != meetings_.end() && it->second.reduced) return;
                               reset(key, r, i, peer);
                           });
    }
}

void DataPlane::cut(int32_t from, int32_t to, bool on) {
    if (on) {
        cuts_.insert({from, to});
        return;
    }
    cuts_.erase({from, to});
    for (auto& [key, m] : meetings_) {
        tryReduce(key, m);
        if (!m.reduced) continue;
        for (const Seat& s : m.seats)
            if (s.side == Side::kIn)
                events_.at(now_ + rng_.between(0.3, 4), [this, key = key, r = s.replica,
                                                         i = s.incarnation] { finish(key, r, i); });
    }
}

void DataPlane::healCuts() {
    while (!cuts_.empty()) {
        const auto [from, to] = *cuts_.begin();
        cut(from, to, false);
    }
}

void DataPlane::trim() {
    if (order_.size() < 2 * kMeetingsKept) return;
    for (size_t i = 0; i < kMeetingsKept; ++i) meetings_.erase(order_[i]);
    order_.erase(order_.begin(), order_.begin() + kMeetingsKept);
}

}  // namespace bulkhead::simulation
