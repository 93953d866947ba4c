// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/invariants.h"

#include "absl/strings/str_cat.h"

namespace bulkhead::protocol {
namespace {

std::string name(const CommitRecord& r) {
    return absl::StrCat("lineage ", r.lineage, " step ", r.step, " (epoch ", r.epoch, ", attempt ",
                        r.attempt, ")");
}

}  // namespace

std::optional<Violation> InvariantChecker::lineage(uint64_t lineage, const LedgerState& ledger,
                                                   uint64_t fromStep) {
    if (lineage <= lineage_)
        return Violation{"I6", absl::StrCat("lineage ", lineage, " opened after ", lineage_)};
    lineage_ = lineage;
    lastStep_ = fromStep;
    consumed_.clear();
    for (const SampleRange& r : ledger.committed)
        if (!consumed_[r.domain].insert(r.begin, r.end))
            return Violation{"I2",
                             absl::StrCat("lineage ", lineage, " begins with sample ", r.begin,
                                          " of domain ", r.domain, " consumed twice")};
    return std::nullopt;
}

std::optional<Violation> InvariantChecker::committed(const CommitRecord& record) {
    Step& step = steps_[{record.lineage, record.step}];
    if (step.record && *step.record != record)
        return Violation{"I1", absl::StrCat("two records of ", name(record))};
    if (step.record) return Violation{"I6", absl::StrCat(name(record), " was committed twice")};
    if (record.lineage != lineage_ || record.step != lastStep_ + 1)
        return Violation{
            "I6", absl::StrCat(name(record), " follows lineage ", lineage_, " step ", lastStep_)};
    step.record = record;
    lastStep_ = record.step;
    for (const Contribution& c : record.contributors)
        for (const SampleRange& r : c.ranges)
            if (!consumed_[r.domain].insert(r.begin, r.end))
                return Violation{
                    "I2", absl::StrCat(name(record), " consumes samples [", r.begin, ", ", r.end,
                                       ") of domain ", r.domain, " again, by r", c.replica)};
    trim();
    return std::nullopt;
}

std::optional<Violation> InvariantChecker::applied(int32_t replica, uint32_t incarnation,
                                                   const CommitRecord& record,
                                                   const std::vector<uint64_t>& hashes) {
    const auto it = steps_.find({record.lineage, record.step});
    if (it == steps_.end() || !it->second.record) {
        if (!steps_.empty() && std::pair(record.lineage, record.step) < steps_.begin()->first)
            return std::nullopt;  // older than the window
        return Violation{
            "I5", absl::StrCat("r", replica, " applied ", name(record), " before it was durable")};
    }
    if (*it->second.record != record)
        return Violation{"I1",
                         absl::StrCat("r", replica, " applied another record of ", name(record))};
    auto& last = appliedBy_[{replica, incarnation}];
    const std::pair now{record.lineage, record.step};
    if (last.first == now.first && last.second >= now.second)
        return Violation{"I5", absl::StrCat("r", replica, " applied ", name(record), " after step ",
                                            last.second)};
    last = now;
    return this->hashes(record.lineage, record.step, replica, hashes);
}

std::optional<Violation> InvariantChecker::hashes(uint64_t lineage, uint64_t step, int32_t replica,
                                                  const std::vector<uint64_t>& hashes) {
    if (hashes.empty()) return std::nullopt;
    const auto it = steps_.find({lineage, step});
    if (it == steps_.end()) return std::nullopt;
    Step& s = it->second;
    if (s.hashes.empty()) {
        s.hashes = hashes;
        s.hashedBy = replica;
    } else if (s.hashes != hashes) {
        return Violation{"I3", absl::StrCat("after lineage ", lineage, " step ", step, " r",
                                            replica, " and r", s.hashedBy, " differ")};
    }
    return std::nullopt;
}

std::optional<Violation> InvariantChecker::ledger(const DataLedger& ledger) {
    const absl::Status s = ledger.check();
    if (s.ok()) return std::nullopt;
    return Violation{"I2", std::string(s.message())};
}

void InvariantChecker::trim() {
    while (steps_.size() > window_) steps_.erase(steps_.begin());
}

}  // namespace bulkhead::protocol
