// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/checkpoint_book.h"

#include <algorithm>
#include <set>
#include <utility>

namespace bulkhead::protocol {

CheckpointBook::CheckpointBook(std::vector<LogCheckpoint> known) {
    for (LogCheckpoint& c : known) add(std::move(c));
}

void CheckpointBook::add(LogCheckpoint checkpoint) {
    if (find(checkpoint.path) != nullptr) return;
    std::erase_if(known_, [&](const LogCheckpoint& c) {
        return c.lineage < checkpoint.lineage && c.step >= checkpoint.step;
    });
    const auto at = std::lower_bound(
        known_.begin(), known_.end(), checkpoint.step,
        [](const LogCheckpoint& known, uint64_t step) { return known.step < step; });
    known_.insert(at, std::move(checkpoint));
}

void CheckpointBook::remove(const std::string& path) {
    std::erase_if(known_, [&](const LogCheckpoint& c) { return c.path == path; });
}

const LogCheckpoint* CheckpointBook::find(const std::string& path) const {
    const auto at = std::find_if(known_.begin(), known_.end(),
                                 [&](const LogCheckpoint& c) { return c.path == path; });
    return at == known_.end() ? nullptr : &*at;
}

std::vector<std::string> CheckpointBook::surplus(uint32_t steps) const {
    std::set<uint64_t> kept;
    std::vector<std::string> paths;
    for (auto it = known_.rbegin(); it != known_.rend(); ++it) {
        const bool keep = kept.contains(it->step) || kept.size() < std::max(1u, steps);
        if (keep) kept.insert(it->step);
        if (!keep && !it->borrowed) paths.push_back(it->path);
    }
    return paths;
}

std::optional<LogCheckpoint> byManifest(const StoredCheckpoint& stored) {
    if (!stored.ledger) return std::nullopt;
    const CommitRecord& last = stored.last;
    return LogCheckpoint{last.lineage,       last.step, last.updates,   stored.path,  stored.layout,
                         stored.expertShard, {},        *stored.ledger, stored.hashes};
}

namespace {

/// A log may begin with this in its place.
LogLineage goingOnFrom(const LogCheckpoint& c) {
    return {c.lineage,     c.step,        c.updates, c.path, c.layout,
            c.expertShard, c.domainShare, c.ledger,  ""};
}

/// Another record of one of its steps, in the log or another checkpoint: a disk has lost the past
/// of one of them.
bool isContradicted(const StoredCheckpoint& stored, const std::vector<LogEntry>& log,
                    const std::vector<StoredCheckpoint>& others) {
    const std::vector<CommitRecord>& records = stored.records;
    const auto differs = [&](const CommitRecord& other) {
        const uint64_t first = records.front().step;
        const bool same = other.lineage == stored.last.lineage && other.step >= first &&
                          other.step - first < records.size();
        return same && records[other.step - first] != other;
    };
    return std::ranges::any_of(log,
                               [&](const LogEntry& entry) {
                                   const auto* commit = std::get_if<LogCommit>(&entry);
                                   return commit != nullptr && differs(commit->record);
                               }) ||
           std::ranges::any_of(others, [&](const StoredCheckpoint& other) {
               return other.ledger && differs(other.last);
           });
}

/// The contributors of the next step voted for other hashes of its state: the job went on from
/// theirs, and its own may be wrong.
bool isOutvoted(const StoredCheckpoint& stored, const std::vector<LogEntry>& log) {
    return !stored.hashes.empty() && std::ranges::any_of(log, [&](const LogEntry& entry) {
        const auto* commit = std::get_if<LogCommit>(&entry);
        if (commit == nullptr || commit->figures.parity.empty()) return false;
        const CommitRecord& next = commit->record;
        return next.lineage == stored.last.lineage && next.step == stored.last.step + 1 &&
               next.layout == stored.layout &&
               commit->figures.parity.front().hashes != stored.hashes;
    });
}

/// The log's entry of it by its own records, if they go on from one of `bases`.
std::optional<LogCheckpoint> byRecords(const StoredCheckpoint& stored,
                                       const std::vector<LogCheckpoint>& bases,
                                       const std::vector<LogEntry>& whole,
                                       const std::vector<StoredCheckpoint>& others,
                                       uint32_t replicas, uint32_t domains) {
    const std::vector<CommitRecord>& records = stored.records;
    if (records.empty() || records.back() != stored.last) return std::nullopt;
    if (isContradicted(stored, whole, others)) return std::nullopt;
    // Before its first step a job has seen nothing.
    LogCheckpoint begin;
    begin.lineage = stored.last.lineage;
    begin.ledger.highWater.assign(domains, 0);
    const LogCheckpoint* base = records.front().step == 1 ? &begin : nullptr;
    for (const LogCheckpoint& b : bases) {
        const bool leads = b.lineage == stored.last.lineage && b.step + 1 >= records.front().step &&
                           b.step < stored.last.step;
        if (leads && (base == nullptr || base->step <= b.step)) base = &b;
    }
    if (base == nullptr) return std::nullopt;
    std::vector<LogEntry> log = {goingOnFrom(*base)};
    for (const CommitRecord& record : records)
        if (record.step > base->step) log.emplace_back(LogCommit{record, {}});
    const auto state = recoverState(log, replicas, domains);
    if (!state.ok() || state->step != stored.last.step) return std::nullopt;
    const bool moved = base->layout != stored.layout;  // no record has the shares that came with it
    return LogCheckpoint{state->lineage,
                         state->step,
                         state->updates,
                         stored.path,
                         stored.layout,
                         stored.expertShard,
                         moved ? std::vector<uint32_t>{} : state->domainShare,
                         state->ledger,
                         stored.hashes};
}

/// Those of `stored` that say by themselves which samples they have seen.
std::vector<LogCheckpoint> byManifests(const std::vector<StoredCheckpoint>& stored) {
    std::vector<LogCheckpoint> known;
    for (const StoredCheckpoint& s : stored)
        if (auto checkpoint = byManifest(s)) known.push_back(*std::move(checkpoint));
    return known;
}

}  // namespace

absl::StatusOr<std::vector<LogCheckpoint>> judgeStored(const std::vector<LogEntry>& log,
                                                       uint32_t replicas, uint32_t domains,
                                                       std::vector<StoredCheckpoint> stored) {
    std::erase_if(stored, [&](const StoredCheckpoint& s) { return isOutvoted(s, log); });
    const auto sharedBy = [&](const StoredCheckpoint& s) {
        return std::count_if(stored.begin(), stored.end(), [&](const StoredCheckpoint& o) {
            return o.last == s.last && o.layout == s.layout && o.hashes == s.hashes;
        });
    };
    std::vector<std::pair<ptrdiff_t, size_t>> order;
    for (size_t i = 0; i < stored.size(); ++i) order.emplace_back(-sharedBy(stored[i]), i);
    std::sort(order.begin(), order.end());
    std::vector<LogCheckpoint> judged;
    const auto look = [&](const LogEntry& entry, const RecoveredState& state) {
        if (const auto* lineage = std::get_if<LogLineage>(&entry))
            std::erase_if(judged,
                          [&](const LogCheckpoint& c) { return c.step > lineage->fromStep; });
        const auto* commit = std::get_if<LogCommit>(&entry);
        if (commit == nullptr) return;
        for (const auto& [votes, i] : order) {
            const StoredCheckpoint& s = stored[i];
            if (s.last != commit->record) continue;
            judged.push_back(LogCheckpoint{state.lineage, state.step, state.updates, s.path,
                                           s.layout, s.expertShard, state.domainShare, state.ledger,
                                           s.hashes});
        }
    };
    const auto state = recoverState(log, replicas, domains, look);
    if (!state.ok()) return state.status();
    std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
        return stored[a.second].last.step < stored[b.second].last.step;
    });
    std::vector<LogCheckpoint> bases = byManifests(stored);
    uint64_t lineage = state->lineage;
    for (const LogCheckpoint& c : bases) lineage = std::max(lineage, c.lineage);
    if (state->lineage == 0)  // nothing is left of the log
        for (const StoredCheckpoint& s : stored) lineage = std::max(lineage, s.last.lineage);
    bases.insert(bases.end(), state->checkpoints.begin(), state->checkpoints.end());
    bases.push_back(LogCheckpoint{state->lineage, state->step, state->updates, "", state->layout,
                                  state->expertShard, state->domainShare, state->ledger});
    for (const auto& [votes, i] : order) {
        const CommitRecord& last = stored[i].last;
        const bool behind = last.lineage > state->lineage || last.step > state->step;
        if (last.lineage != lineage || !behind) continue;
        auto checkpoint = byManifest(stored[i]);
        if (!checkpoint) checkpoint = byRecords(stored[i], bases, log, stored, replicas, domains);
        if (checkpoint) judged.push_back(*std::move(checkpoint));
    }
    return judged;
}

namespace {

/// The log tells from its last anchor on.
std::vector<LogCheckpoint> judgeByChain(const std::vector<LogEntry>& whole, uint32_t replicas,
                                        uint32_t domains,
                                        const std::vector<StoredCheckpoint>& stored) {
    const auto base = std::find_if(whole.rbegin(), whole.rend(), [](const LogEntry& entry) {
        return std::holds_alternative<LogLineage>(entry) ||
               std::holds_alternative<LogCheckpoint>(entry);
    });
    if (base == whole.rend()) return {};
    std::vector<LogEntry> rest;
    auto next = base.base() - 1;
    if (const auto* c = std::get_if<LogCheckpoint>(&*base)) {
        rest.emplace_back(goingOnFrom(*c));
        // It was logged when its files were written: later steps were committed meanwhile.
        next = std::find_if(whole.begin(), whole.end(), [&](const LogEntry& entry) {
            const auto* commit = std::get_if<LogCommit>(&entry);
            return commit != nullptr && commit->record.lineage == c->lineage &&
                   commit->record.step > c->step;
        });
    }
    std::string before;
    const auto breaks = [&before](const auto& entry) {
        if constexpr (requires { entry.link; }) {
            const bool follows = before.empty() || chainLink(before, chained(entry)) == entry.link;
            before = entry.link;
            return !follows;
        }
        return false;
    };
    rest.insert(rest.end(), next, std::find_if(next, whole.end(), [&](const LogEntry& entry) {
                    return std::visit(breaks, entry);
                }));
    size_t good = 0;
    (void)recoverState(rest, replicas, domains,
                       [&](const LogEntry&, const RecoveredState&) { ++good; });
    rest.resize(good);
    return judgeStored(rest, replicas, domains, stored).value_or(std::vector<LogCheckpoint>{});
}

}  // namespace

std::vector<LogCheckpoint> judgeBehindDamage(const std::vector<LogEntry>& whole, uint32_t replicas,
                                             uint32_t domains,
                                             const std::vector<StoredCheckpoint>& stored) {
    std::vector<StoredCheckpoint> candidates = stored;
    std::erase_if(candidates, [&](const StoredCheckpoint& s) { return isOutvoted(s, whole); });
    std::vector<LogCheckpoint> found = judgeByChain(whole, replicas, domains, candidates);
    std::vector<LogCheckpoint> bases = byManifests(stored);
    uint64_t lineage = 0;
    for (const LogCheckpoint& c : bases) lineage = std::max(lineage, c.lineage);
    for (const LogEntry& entry : whole) {
        if (const auto* c = std::get_if<LogCheckpoint>(&entry)) bases.push_back(*c);
        if (const auto* c = std::get_if<LogCommit>(&entry))
            lineage = std::max(lineage, c->record.lineage);
        const auto* l = std::get_if<LogLineage>(&entry);
        if (l == nullptr) continue;
        lineage = std::max(lineage, l->lineage);
        bases.push_back(LogCheckpoint{l->lineage, l->fromStep, l->updates, l->resumeFrom, l->layout,
                                      l->expertShard, l->domainShare, l->ledger});
    }
    for (const StoredCheckpoint& s : candidates) {
        const bool known =
            std::ranges::any_of(found, [&](const auto& c) { return c.path == s.path; });
        if (known || s.last.lineage < lineage) continue;
        if (auto checkpoint = byRecords(s, bases, whole, stored, replicas, domains))
            found.push_back(*std::move(checkpoint));
    }
    return found;
}

}  // namespace bulkhead::protocol
