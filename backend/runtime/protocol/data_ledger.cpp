// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/data_ledger.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace bulkhead::protocol {
namespace {

std::string name(const SampleRange& r) {
    return absl::StrCat("domain ", r.domain, " [", r.begin, ", ", r.end, ")");
}

void append(std::vector<SampleRange>& out, uint32_t domain, const IntervalSet& set) {
    for (const auto& [begin, end] : set.intervals()) out.push_back({domain, begin, end});
}

}  // namespace

uint64_t sampleCount(const std::vector<SampleRange>& ranges) {
    uint64_t n = 0;
    for (const SampleRange& r : ranges) n += r.end - r.begin;
    return n;
}

DataLedger::DataLedger(uint32_t domains, std::vector<double> weights)
    : weights_(std::move(weights)), highWater_(std::max(1u, domains)), domains_(highWater_.size()) {
    weights_.resize(highWater_.size(), 1.0);
    for (double& w : weights_)
        if (!(w > 0)) w = 1e-9;
}

absl::StatusOr<DataLedger> DataLedger::restore(const LedgerState& state,
                                               std::vector<double> weights) {
    DataLedger ledger(static_cast<uint32_t>(state.highWater.size()), std::move(weights));
    if (state.highWater.empty()) return absl::InvalidArgumentError("a data ledger has no domain");
    ledger.highWater_ = state.highWater;
    auto fill = [&](const std::vector<SampleRange>& ranges, IntervalSet Domain::*set) {
        for (const SampleRange& r : ranges) {
            if (r.domain >= ledger.domains_.size() || r.begin >= r.end ||
                !(ledger.domains_[r.domain].*set).insert(r.begin, r.end))
                return absl::InvalidArgumentError(
                    absl::StrCat("a data ledger holds a bad range: ", name(r)));
        }
        return absl::OkStatus();
    };
    for (auto [ranges, set] : {std::pair{&state.committed, &Domain::committed},
                               std::pair{&state.pooled, &Domain::pooled},
                               std::pair{&state.quarantined, &Domain::quarantined}})
        if (absl::Status s = fill(*ranges, set); !s.ok()) return s;
    for (const LeaseState& l : state.leases) ledger.leases_[{l.step, l.replica}] = l.ranges;
    if (absl::Status s = ledger.check(); !s.ok()) return absl::InvalidArgumentError(s.message());
    return ledger;
}

uint32_t DataLedger::nextFreshDomain() const {
    uint32_t best = 0;
    double bestShare = 0;
    for (uint32_t d = 0; d < highWater_.size(); ++d) {
        const double share = static_cast<double>(highWater_[d] + 1) / weights_[d];
        if (d == 0 || share < bestShare) {
            best = d;
            bestShare = share;
        }
    }
    return best;
}

std::vector<SampleRange> DataLedger::take(uint64_t samples) {
    std::vector<SampleRange> out;
    for (uint32_t d = 0; d < domains_.size() && samples > 0; ++d)
        while (auto got = domains_[d].pooled.takeLowest(samples)) {
            out.push_back({d, got->first, got->second});
            samples -= got->second - got->first;
        }
    std::vector<uint64_t> from = highWater_;
    for (; samples > 0; --samples) ++highWater_[nextFreshDomain()];
    for (uint32_t d = 0; d < highWater_.size(); ++d) {
        if (highWater_[d] == from[d]) continue;
        // A pooled range that ends where the fresh one begins is one range to its reader.
        if (!out.empty() && out.back().domain == d && out.back().end == from[d])
            out.back().end = highWater_[d];
        else
            out.push_back({d, from[d], highWater_[d]});
    }
    return out;
}

absl::StatusOr<std::vector<SampleRange>> DataLedger::lease(uint64_t step, int32_t replica,
                                                           uint64_t samples) {
    if (leases_.contains({step, replica}))
        return absl::AlreadyExistsError(
            absl::StrCat("r", replica, " holds a lease for step ", step, " already"));
    auto& ranges = leases_[{step, replica}] = take(samples);
    return ranges;
}

absl::Status DataLedger::leaseExactly(uint64_t step, int32_t replica,
                                      const std::vector<SampleRange>& ranges) {
    if (leases_.contains({step, replica}))
        return absl::AlreadyExistsError(
            absl::StrCat("r", replica, " holds a lease for step ", step, " already"));
    DataLedger trial = *this;
    for (const SampleRange& r : ranges) {
        trial.widen(r);
        if (r.domain >= domains_.size() || r.begin >= r.end ||
            !trial.domains_[r.domain].pooled.erase(r.begin, r.end))
            return absl::FailedPreconditionError(absl::StrCat(name(r), " is not free"));
    }
    trial.leases_[{step, replica}] = ranges;
    *this = std::move(trial);
    return absl::OkStatus();
}

absl::Status DataLedger::swapLeases(uint64_t step, int32_t a, int32_t b) {
    const auto x = leases_.find({step, a});
    const auto y = leases_.find({step, b});
    if (x == leases_.end() || y == leases_.end())
        return absl::NotFoundError(
            absl::StrCat("step ", step, ": r", a, " and r", b, " do not both hold a lease"));
    std::swap(x->second, y->second);
    return absl::OkStatus();
}

uint64_t DataLedger::giveBack(uint64_t step, int32_t replica) {
    const auto it = leases_.find({step, replica});
    if (it == leases_.end()) return 0;
    const uint64_t n = sampleCount(it->second);
    for (const SampleRange& r : it->second) domains_[r.domain].pooled.insert(r.begin, r.end);
    leases_.erase(it);
    return n;
}

uint64_t DataLedger::giveBackStep(uint64_t step) {
    uint64_t n = 0;
    for (auto it = leases_.lower_bound({step, INT32_MIN});
         it != leases_.end() && it->first.first == step;) {
        const auto key = it->first;
        ++it;
        n += giveBack(key.first, key.second);
    }
    return n;
}

uint64_t DataLedger::giveBackAll() {
    uint64_t n = 0;
    while (!leases_.empty()) {
        const auto key = leases_.begin()->first;
        n += giveBack(key.first, key.second);
    }
    return n;
}

absl::Status DataLedger::commit(const CommitRecord& record) {
    for (const Contribution& c : record.contributors) {
        const auto it = leases_.find({record.step, c.replica});
        if (it == leases_.end() ? !c.ranges.empty() : it->second != c.ranges)
            return absl::FailedPreconditionError(
                absl::StrCat("step ", record.step, ": the record's ranges of r", c.replica,
                             " are not what was leased to it"));
    }
    for (const Contribution& c : record.contributors) {
        leases_.erase({record.step, c.replica});
        for (const SampleRange& r : c.ranges) domains_[r.domain].committed.insert(r.begin, r.end);
    }
    giveBackStep(record.step);
    return absl::OkStatus();
}

absl::Status DataLedger::replayCommit(const CommitRecord& record) {
    for (const Contribution& c : record.contributors)
        for (const SampleRange& r : c.ranges) {
            if (r.domain >= domains_.size() || r.begin >= r.end)
                return absl::FailedPreconditionError(absl::StrCat("step ", record.step, " names ",
                                                                  name(r), ", but there are ",
                                                                  domains_.size(), " domains"));
            Domain& d = domains_[r.domain];
            widen(r);
            if (!d.pooled.erase(r.begin, r.end) || !d.committed.insert(r.begin, r.end))
                return absl::FailedPreconditionError(absl::StrCat(
                    "step ", record.step, " consumes ", name(r), ", which was not free"));
        }
    return absl::OkStatus();
}

absl::Status DataLedger::quarantine(const SampleRange& range) {
    if (range.domain >= domains_.size() || range.begin >= range.end)
        return absl::InvalidArgumentError(absl::StrCat("no such range: ", name(range)));
    Domain& d = domains_[range.domain];
    if (d.pooled.erase(range.begin, range.end)) {
        d.quarantined.insert(range.begin, range.end);
        return absl::OkStatus();
    }
    for (auto& [key, ranges] : leases_)
        for (size_t i = 0; i < ranges.size(); ++i) {
            const SampleRange held = ranges[i];
            if (held.domain != range.domain || held.begin > range.begin || held.end < range.end)
                continue;
            ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(i));
            if (range.end < held.end)
                ranges.insert(ranges.begin() + static_cast<std::ptrdiff_t>(i),
                              {held.domain, range.end, held.end});
            if (held.begin < range.begin)
                ranges.insert(ranges.begin() + static_cast<std::ptrdiff_t>(i),
                              {held.domain, held.begin, range.begin});
            d.quarantined.insert(range.begin, range.end);
            return absl::OkStatus();
        }
    return absl::FailedPreconditionError(
        absl::StrCat(name(range), " is neither leased to one replica nor pooled"));
}

void DataLedger::withhold(const SampleRange& range) {
    if (range.domain >= domains_.size()) return;
    widen(range);
    Domain& d = domains_[range.domain];
    const std::map<uint64_t, uint64_t> free = d.pooled.intervals();
    for (const auto& [first, last] : free) {
        const uint64_t begin = std::max(first, range.begin);
        const uint64_t end = std::min(last, range.end);
        if (begin < end && d.pooled.erase(begin, end)) d.quarantined.insert(begin, end);
    }
}

void DataLedger::widen(const SampleRange& range) {
    if (range.domain >= domains_.size() || range.end <= highWater_[range.domain]) return;
    domains_[range.domain].pooled.insert(highWater_[range.domain], range.end);
    highWater_[range.domain] = range.end;
}

const std::vector<SampleRange>* DataLedger::leased(uint64_t step, int32_t replica) const {
    const auto it = leases_.find({step, replica});
    return it == leases_.end() ? nullptr : &it->second;
}

absl::Status DataLedger::check() const {
    std::vector<IntervalSet> all(domains_.size());
    auto add = [&](const SampleRange& r, const char* what) {
        if (r.domain >= domains_.size() || !all[r.domain].insert(r.begin, r.end))
            return absl::InternalError(
                absl::StrCat("I2: ", name(r), " (", what, ") is counted twice"));
        return absl::OkStatus();
    };
    for (const LedgerState s = state();
         const auto& [ranges, what] :
         {std::pair{&s.committed, "committed"}, std::pair{&s.pooled, "pooled"},
          std::pair{&s.quarantined, "quarantined"}})
        for (const SampleRange& r : *ranges)
            if (absl::Status bad = add(r, what); !bad.ok()) return bad;
    for (const auto& [key, ranges] : leases_)
        for (const SampleRange& r : ranges)
            if (absl::Status bad = add(r, "leased"); !bad.ok()) return bad;
    for (uint32_t d = 0; d < domains_.size(); ++d)
        if (all[d].size() != highWater_[d] || !all[d].contains(0, highWater_[d]))
            return absl::InternalError(
                absl::StrCat("I2: domain ", d, " has ", highWater_[d], " samples handed out, but ",
                             all[d].size(), " are committed, leased, pooled or quarantined"));
    return absl::OkStatus();
}

uint64_t DataLedger::committedSamples() const {
    uint64_t n = 0;
    for (const Domain& d : domains_) n += d.committed.size();
    return n;
}

uint64_t DataLedger::leasedSamples() const {
    uint64_t n = 0;
    for (const auto& [key, ranges] : leases_) n += sampleCount(ranges);
    return n;
}

uint64_t DataLedger::pooledSamples() const {
    uint64_t n = 0;
    for (const Domain& d : domains_) n += d.pooled.size();
    return n;
}

uint64_t DataLedger::quarantinedSamples() const {
    uint64_t n = 0;
    for (const Domain& d : domains_) n += d.quarantined.size();
    return n;
}

LedgerState DataLedger::state() const {
    LedgerState s;
    s.highWater = highWater_;
    for (uint32_t d = 0; d < domains_.size(); ++d) {
        append(s.committed, d, domains_[d].committed);
        append(s.pooled, d, domains_[d].pooled);
        append(s.quarantined, d, domains_[d].quarantined);
    }
    for (const auto& [key, ranges] : leases_) s.leases.push_back({key.first, key.second, ranges});
    return s;
}

LedgerState DataLedger::settledState() const {
    DataLedger copy = *this;
    copy.giveBackAll();
    return copy.state();
}

}  // namespace bulkhead::protocol
