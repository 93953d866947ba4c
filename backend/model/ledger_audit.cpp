// SPDX-License-Identifier: Apache-2.0
#include "backend/model/ledger_audit.h"

#include <algorithm>

#include "backend/model/names.h"
#include "backend/model/units.h"

namespace bulkhead::model {
namespace {

/// A file that was damaged all over is damaged; the first hundred places say how.
constexpr size_t kMostFindings = 100;

constexpr const char* kRestore =
    "restore the run file from a copy; if none has the step, its commit log may";

std::string rangeText(const char* word, uint64_t first, uint64_t last) {
    return first == last ? concat(word, " ", first) : concat(word, "s ", first, " to ", last);
}

std::string names(const std::vector<int32_t>& replicas) {
    std::vector<std::string> words;
    for (const int32_t r : replicas) words.push_back(concat("r", r));
    return joined(words, " ");
}

std::string incarnations(const ParityGroup& group) {
    std::vector<std::string> words;
    for (size_t i = 0; i < group.replicas.size(); ++i)
        words.push_back(concat("r", group.replicas[i], " (incarnation ",
                               i < group.incarnations.size() ? group.incarnations[i] : 0, ")"));
    return joined(words, ", ");
}

std::vector<std::string> shardsThatDiffer(const ParityGroup& a, const ParityGroup& b) {
    std::vector<std::string> shards;
    for (size_t s = 0; s < std::max(a.hashes.size(), b.hashes.size()); ++s)
        if (s >= a.hashes.size() || s >= b.hashes.size() || a.hashes[s] != b.hashes[s])
            shards.push_back(std::to_string(s));
    return shards;
}

}  // namespace

std::string disputeText(const ParityDispute& dispute) {
    std::string out = concat("after step ", dispute.step, " states differ: ");
    const auto largest = std::max_element(
        dispute.groups.begin(), dispute.groups.end(),
        [](const auto& a, const auto& b) { return a.replicas.size() < b.replicas.size(); });
    if (largest == dispute.groups.end()) return out + "no hashes are recorded";
    out += names(largest->replicas);
    out += largest->replicas.size() > 1 ? " agree" : " stands alone";
    for (auto group = dispute.groups.begin(); group != dispute.groups.end(); ++group) {
        if (group == largest) continue;
        const std::vector<std::string> shards = shardsThatDiffer(*group, *largest);
        out +=
            concat(", ", incarnations(*group), group->replicas.size() > 1 ? " differ" : " differs",
                   shards.size() > 1 ? " in shards " : " in shard ", joined(shards, ", "));
    }
    if (dispute.expelled.empty()) return out + "; no majority: replays decide";
    return out + concat("; expelled: ", names(dispute.expelled));
}

std::string paceText(const ParityPaced& pace) {
    const std::string often =
        pace.everySteps == 1 ? "at every step" : concat("every ", pace.everySteps, " steps");
    return concat("states are compared ", often, ": a hash takes ", humanDuration(pace.hashMs),
                  ", a step ", humanDuration(pace.stepMs));
}

std::string ledgerText(const LedgerReport& r) {
    std::string out = concat(r.ok ? "adds up: " : "DOES NOT ADD UP: ", r.steps, " steps, ",
                             r.samples, " samples committed exactly once, ", r.twice, " twice");
    if (r.quarantined > 0) out += concat(", ", r.quarantined, " quarantined");
    if (r.open > 0) out += concat(", ", r.open, " handed back and still open");
    if (r.broken > 0) out += concat(", ", r.broken, " invariants reported broken");
    out += concat("; ", r.compared, " parity checks agree");
    if (r.links == 0 && r.steps > 0)
        out += "; recorded before steps were chained: only the counts can be checked";
    if (r.links > 0 && r.unlinked > 0)
        out += concat("; ", r.unlinked,
                      " steps were recorded before steps were chained: only their counts can be "
                      "checked");
    if (r.links > 0)
        out += concat("; ", r.links, " links up to step ", r.lastStep,
                      r.logStep ? concat(", held against the commit log up to step ", *r.logStep)
                                : std::string(", no commit log to hold the end against"));
    return out;
}

void LedgerAudit::find(LedgerFinding finding) {
    if (out_.findings.size() < kMostFindings)
        out_.findings.push_back(std::move(finding));
    else
        ++leftOut_;
}

/// True when the link is the one that follows. What does not follow is taken as it stands, so that
/// each break is found once.
bool LedgerAudit::followLink(const std::string& link, Chained what, const std::string& of) {
    if (link.empty()) {
        if (out_.links > 0)
            find({lastStep_, concat(of, " has no link, and the chain had begun: it was changed"),
                  kRestore});
        return out_.links == 0;
    }
    bool follows = chainLink(out_.link, what) == link;
    // A log that lost its end goes on from what it has. Looked for once: a file may be hostile.
    if (!follows && std::exchange(goesBack_, false))
        follows = std::any_of(chain_.begin(), chain_.end(), [&](const std::string& before) {
            return chainLink(before, what) == link;
        });
    ++out_.links;
    out_.link = link;
    chain_.push_back(link);
    return follows;
}

void LedgerAudit::take(const LineageOpened& opened) {
    endStretch();
    if (!anyStep_ && steps_.empty() && opened.fromStep > 0) resumed_ = true;
    const bool follows = followLink(opened.link, LineageLink{opened.lineage, opened.fromStep},
                                    concat("lineage ", opened.lineage));
    if (!follows && !opened.link.empty())
        find({lastStep_,
              concat("the chain is broken before lineage ", opened.lineage, ", behind step ",
                     lastStep_, ": rows were changed, swapped or deleted"),
              kRestore});
    if (anyStep_ && opened.fromStep > lastStep_)
        find({lastStep_,
              concat("lineage ", opened.lineage, " begins after step ", opened.fromStep,
                     ", the steps behind ", lastStep_, " are missing"),
              kRestore});
    steps_.erase(steps_.upper_bound(opened.fromStep), steps_.end());
    lineage_ = opened.lineage;
    lastStep_ = opened.fromStep;
    anyStep_ = true;
}

void LedgerAudit::take(const StepCommitted& step) {
    const CommitRecord& record = step.record;
    const bool gap = anyStep_ && record.step > lastStep_ + 1;
    if (gap)
        find({record.step - 1,
              concat(rangeText("step", lastStep_ + 1, record.step - 1),
                     record.step == lastStep_ + 2 ? " is missing: " : " are missing: ",
                     lost_ ? "the run says that it lost events there"
                           : "deleted after the coordinator recorded it"),
              kRestore});
    else if (anyStep_ && record.step <= lastStep_)
        find({record.step,
              concat("step ", record.step, " stands behind step ", lastStep_,
                     " of the same lineage: it was moved or recorded twice"),
              kRestore});
    else if (lineage_ != 0 && record.lineage != lineage_)
        find({record.step,
              concat("step ", record.step, " is of lineage ", record.lineage,
                     ", which is not the open one (", lineage_, ")"),
              kRestore});
    if (step.link.empty()) ++out_.unlinked;
    const bool follows =
        followLink(step.link, StepLink{record, step.loss, step.gradNorm, step.parity},
                   concat("step ", record.step));
    if (!follows && !step.link.empty() && !gap)
        find({record.step,
              concat("the chain is broken at step ", record.step,
                     ": that step, or what stands before it, was changed, swapped or deleted"),
              kRestore});
    uint64_t samples = 0;
    for (const Contribution& contribution : record.contributors)
        for (const SampleRange& range : contribution.ranges) samples += range.end - range.begin;
    if (samples != record.samples)
        find({record.step,
              concat("step ", record.step, " says ", record.samples, " samples, its ranges hold ",
                     samples),
              kRestore});
    lost_ = false;
    steps_[record.step] = record;
    links_.push_back({record.lineage, record.step, step.link});
    lineage_ = record.lineage;
    lastStep_ = record.step;
    anyStep_ = true;
    noteParity(step);
}

void LedgerAudit::noteParity(const StepCommitted& step) {
    if (step.parity.empty() || step.record.step == 0) return;
    const uint64_t of = step.record.step - 1;
    if (step.parity.size() > 1) {
        ParityDispute odd;
        odd.step = of;
        odd.groups = step.parity;
        find({step.record.step,
              concat("step ", step.record.step, " was committed although ", disputeText(odd)),
              "do not trust the steps from here on; report this with the run file"});
        return;
    }
    ++out_.compared;
    const std::vector<int32_t>& replicas = step.parity.front().replicas;
    if (stretch_ && stretch_->replicas == replicas) {
        stretch_->last = of;
        return;
    }
    endStretch();
    stretch_ = Stretch{of, of, replicas};
}

void LedgerAudit::endStretch() {
    if (!stretch_) return;
    out_.parity.push_back(concat("after ", rangeText("step", stretch_->first, stretch_->last), " ",
                                 names(stretch_->replicas),
                                 stretch_->replicas.size() > 1 ? " agree" : " stands alone"));
    stretch_.reset();
}

void LedgerAudit::add(const Event& event) {
    if (const auto* opened = std::get_if<LineageOpened>(&event.body)) {
        take(*opened);
    } else if (const auto* commit = std::get_if<StepCommitted>(&event.body)) {
        take(*commit);
    } else if (const auto* range = std::get_if<RangeQuarantined>(&event.body)) {
        quarantined_.push_back(range->range);
        if (!followLink(range->link, QuarantineLink{range->range}, "a quarantined range") &&
            !range->link.empty())
            find({lastStep_,
                  concat("the chain is broken behind step ", lastStep_,
                         ": a quarantined range, or what stands before it, was changed"),
                  kRestore});
    } else if (const auto* disputed = std::get_if<ParityDisputed>(&event.body)) {
        endStretch();
        out_.parity.push_back(disputeText(disputed->dispute));
        if (!followLink(disputed->link, disputed->dispute, "a parity dispute") &&
            !disputed->link.empty())
            find({lastStep_,
                  concat("the chain is broken behind step ", lastStep_,
                         ": a parity dispute, or what stands before it, was changed"),
                  kRestore});
    } else if (const auto* seen = std::get_if<EvidenceSeen>(&event.body)) {
        if (seen->kind != EvidenceKind::kParityMismatch) return;
        endStretch();
        out_.parity.push_back(
            concat("behind step ", lastStep_, " r", seen->replica, " is expelled: ", seen->detail));
    } else if (const auto* invariant = std::get_if<InvariantBroken>(&event.body)) {
        ++out_.broken;
        const bool ofHistory = invariant->invariant == "history";
        const bool ofLog = invariant->invariant == "I6";
        lost_ = lost_ || ofHistory;
        logLost_ = logLost_ || ofLog;
        goesBack_ = goesBack_ || ofLog;
        find({lastStep_,
              concat("the run reported ", invariant->invariant, " broken: ", invariant->detail),
              ofHistory ? "free the disk of the run file before the next run; the commit log has "
                          "the steps"
              : ofLog   ? "keep this run file, which has what the log lost; look after the disk of "
                          "the state folder"
                        : "report this with the run file and its commit log"});
    }
}

/// The file's steps against the log's, both in the order in which they were committed.
void LedgerAudit::compare(const std::vector<LogLink>& log, bool growing) {
    out_.logStep = log.empty() ? 0 : log.back().step;
    constexpr const char* kRewritten =
        "restore the run file from a copy, or take the commit log's word: it is what was trained";
    std::map<std::pair<uint64_t, uint64_t>, size_t> places;
    for (size_t i = 0; i < log.size(); ++i) places[{log[i].lineage, log[i].step}] = i;
    size_t at = 0;
    // Steps behind the log's last one, in a chain without a break: the log is the one that lacks.
    size_t behind = 0;
    for (auto mine = links_.rbegin();
         mine != links_.rend() && !places.contains({mine->lineage, mine->step}); ++mine)
        ++behind;
    const bool cut = out_.findings.empty() && behind > 0 && behind < links_.size();
    if (cut && !logLost_)
        find(
            {lastStep_,
             concat("the commit log ends with step ", *out_.logStep,
                    ", and the run file goes on to ", links_.back().step,
                    " in a chain that holds: the log has lost its end"),
             "keep this run file, which has what the log lost; put the commit log back from a copy "
             "before its controller starts, or the job goes back to its last checkpoint"});
    for (const LogLink& mine : links_) {
        const auto place = places.find({mine.lineage, mine.step});
        if (place == places.end()) {
            if (!logLost_ && !cut)
                find({mine.step,
                      concat("step ", mine.step, " of lineage ", mine.lineage,
                             " is not in the commit log"),
                      kRewritten});
            continue;
        }
        at = std::max(at, place->second + 1);
        const LogLink* found = &log[place->second];
        if (found->link != mine.link && !(found->link.empty() && mine.link.empty()))
            find({mine.step,
                  concat("step ", mine.step,
                         " has another link than in the commit log: the run file was rewritten"),
                  kRewritten});
    }
    if (at == log.size() || growing) return;
    find(
        {lastStep_,
         concat("the run file ends at step ", links_.empty() ? 0 : links_.back().step,
                " of the log's ", log.back().step, ": its last ", log.size() - at,
                " commits are missing"),
         "free the disk of the run file, and where no controller runs start it again (bulkheadctl "
         "up with the same --db, or bulkheadd with the same folders): it records what the log has; "
         "else restore the run file from a copy"});
}

void LedgerAudit::addUp(LedgerReport& out) const {
    out.steps = steps_.size();
    std::map<uint32_t, std::vector<std::pair<SampleRange, uint64_t>>> domains;
    for (const auto& [step, record] : steps_)
        for (const Contribution& contribution : record.contributors)
            for (const SampleRange& range : contribution.ranges) {
                domains[range.domain].emplace_back(range, step);
                out.samples += range.end - range.begin;
            }
    for (const SampleRange& range : quarantined_) {
        domains[range.domain].emplace_back(range, 0);
        out.quarantined += range.end - range.begin;
    }
    for (auto& [domain, ranges] : domains) {
        std::sort(ranges.begin(), ranges.end());
        uint64_t high = resumed_ ? ranges.front().first.begin : 0;
        uint64_t before = 0;
        for (const auto& [range, step] : ranges) {
            if (range.begin > high) out.open += range.begin - high;
            if (range.begin < high) {
                const uint64_t twice = std::min(high, range.end) - range.begin;
                out.twice += twice;
                if (out.findings.size() < kMostFindings)
                    out.findings.push_back(
                        {step,
                         concat("step ", step, " counts ", twice, " samples of domain ", domain,
                                ", from ", range.begin, " on, that step ", before, " counts too"),
                         "do not trust the run; report this with the run file and its commit log"});
            }
            if (range.end > high) before = step;
            high = std::max(high, range.end);
        }
    }
    out.samples -= std::min(out.samples, out.twice);
}

LedgerReport LedgerAudit::report(const std::optional<std::vector<LogLink>>& log, bool growing) {
    endStretch();
    if (log)
        compare(*log, growing);
    else if (!anyStep_ && out_.findings.empty())
        find({0, "no step is recorded, and no commit log is there: nothing can be checked",
              "put the run's commit log back, or restore the run file from a copy"});
    LedgerReport out = out_;
    addUp(out);
    out.lastStep = lastStep_;
    if (leftOut_ > 0)
        out.findings.push_back({lastStep_, concat("and ", leftOut_, " more"), kRestore});
    std::stable_sort(out.findings.begin(), out.findings.end(),
                     [](const auto& a, const auto& b) { return a.step < b.step; });
    out.ok = out.findings.empty();
    return out;
}

}  // namespace bulkhead::model
