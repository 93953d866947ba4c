// SPDX-License-Identifier: Apache-2.0
#include "backend/client/ledger_check.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace bulkhead::client {
namespace {

/// What one reading has so far; each page's answer asks for the next.
struct Reading {
    Client& client;
    model::EventQuery query;
    LedgerCheck check;
    Reply<LedgerReport> reply;
};

void readOn(const std::shared_ptr<Reading>& reading) {
    reading->client.readEvents(reading->query, [reading](Result<model::EventPage> page) {
        if (!page.ok()) return reading->reply(page.failure());
        for (const model::Event& event : page.value().events) reading->check.add(event);
        reading->query.fromSeq = page.value().nextSeq;
        if (reading->query.fromSeq == 0) return reading->reply(reading->check.report());
        readOn(reading);
    });
}

}  // namespace

void LedgerCheck::add(const model::Event& event) {
    if (const auto* opened = std::get_if<model::LineageOpened>(&event.body)) {
        if (steps_.empty() && opened->fromStep > 0) resumed_ = true;
        steps_.erase(steps_.upper_bound(opened->fromStep), steps_.end());
    } else if (const auto* commit = std::get_if<model::StepCommitted>(&event.body)) {
        steps_[commit->record.step] = commit->record;
    } else if (const auto* range = std::get_if<model::RangeQuarantined>(&event.body)) {
        quarantined_.push_back(range->range);
    } else if (std::holds_alternative<model::InvariantBroken>(event.body)) {
        ++broken_;
    }
}

LedgerReport LedgerCheck::report() const {
    LedgerReport out;
    out.steps = steps_.size();
    out.broken = broken_;
    std::map<uint32_t, std::vector<SampleRange>> domains;
    for (const auto& [step, record] : steps_)
        for (const Contribution& contribution : record.contributors)
            for (const SampleRange& range : contribution.ranges) {
                domains[range.domain].push_back(range);
                out.samples += range.end - range.begin;
            }
    for (const SampleRange& range : quarantined_) {
        domains[range.domain].push_back(range);
        out.quarantined += range.end - range.begin;
    }
    for (auto& [domain, ranges] : domains) {
        std::sort(ranges.begin(), ranges.end());
        uint64_t high = resumed_ ? ranges.front().begin : 0;
        for (const SampleRange& range : ranges) {
            if (range.begin > high) out.open += range.begin - high;
            if (range.begin < high) out.twice += std::min(high, range.end) - range.begin;
            high = std::max(high, range.end);
        }
    }
    out.samples -= std::min(out.samples, out.twice);
    return out;
}

std::string LedgerReport::text() const {
    std::string out = std::to_string(steps) + " steps, " + std::to_string(samples) +
                      " samples committed exactly once, " + std::to_string(twice) + " twice";
    if (quarantined > 0) out += ", " + std::to_string(quarantined) + " quarantined";
    if (open > 0) out += ", " + std::to_string(open) + " handed back and still open";
    if (broken > 0) out += ", " + std::to_string(broken) + " invariants reported broken";
    return out + (ok() ? ": adds up" : ": DOES NOT ADD UP");
}

model::Json LedgerReport::json() const {
    return {{"steps", steps},   {"samples", samples},         {"twice", twice}, {"open", open},
            {"broken", broken}, {"quarantined", quarantined}, {"ok", ok()}};
}

void checkLedger(Client& client, std::string run, Reply<LedgerReport> reply) {
    auto reading = std::make_shared<Reading>(Reading{client, {}, {}, std::move(reply)});
    reading->query.run = std::move(run);
    reading->query.types = {"step_committed", "lineage_opened", "range_quarantined",
                            "invariant_broken"};
    readOn(reading);
}

}  // namespace bulkhead::client
