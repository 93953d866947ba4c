// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/common/ledger_chain.h"
#include "backend/model/event.h"

/// Judges if a run's ledger is whole, from its events alone: pure, O(events).
namespace bulkhead::model {

/// A step as the commit log has it.
struct LogLink {
    uint64_t lineage = 0;
    uint64_t step = 0;
    std::string link;  ///< empty: the log is older than the chain
    bool operator==(const LogLink&) const = default;
};

/// Something that is off.
struct LedgerFinding {
    uint64_t step = 0;  ///< at which it is, or the last one before it; 0: none
    std::string what;   ///< one line
    std::string remedy;
    bool operator==(const LedgerFinding&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("what", self.what);
        visit("remedy", self.remedy);
    }
};

struct LedgerReport {
    uint64_t steps = 0;    ///< committed and not superseded
    uint64_t samples = 0;  ///< committed exactly once
    uint64_t twice = 0;    ///< samples committed more than once: must be 0 (I2)
    uint64_t open = 0;     ///< below the high water and neither committed nor quarantined: at the
                           ///< end of a run, what was handed back and not yet trained on
    uint64_t quarantined = 0;
    uint64_t broken = 0;    ///< invariants the run itself reported broken
    uint64_t links = 0;     ///< of the chain, steps given up by a rollback included
    uint64_t unlinked = 0;  ///< steps recorded before there was a chain: only counts are checked
    std::string link;       ///< the chain's last
    uint64_t lastStep = 0;  ///< of the run file
    /// The last step of the commit log that the file was held against; absent: there was no log.
    std::optional<uint64_t> logStep;
    uint64_t compared = 0;  ///< steps whose states were compared and agreed
    /// "after steps 1 to 56, r0 r1 r2 r3 agree", "after step 57 states differ: ..."; every
    /// comparison is in one of them.
    std::vector<std::string> parity;
    std::vector<LedgerFinding> findings;
    bool ok = true;  ///< no findings
    bool operator==(const LedgerReport&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("steps", self.steps);
        visit("samples", self.samples);
        visit("twice", self.twice);
        visit("open", self.open);
        visit("quarantined", self.quarantined);
        visit("broken", self.broken);
        visit("links", self.links);
        visit("unlinked", self.unlinked);
        visit("link", self.link);
        visit("last_step", self.lastStep);
        visit("log_step", self.logStep);
        visit("compared", self.compared);
        visit("parity", self.parity);
        visit("findings", self.findings);
        visit("ok", self.ok);
    }
};

/// "after step 57 states differ: r0 r1 r3 agree, r2 (incarnation 1) differs in shard 1; r2 goes"
std::string disputeText(const ParityDispute& dispute);
/// "states are compared every 8 steps: a hash takes 3.8 ms, a step 240 ms"
std::string paceText(const ParityPaced& pace);

/// The report in one line: counts and verdict.
std::string ledgerText(const LedgerReport& report);

/// Adds a run's ledger up, and follows its chain (docs/protocol.md, "The ledger's chain"). Feed all
/// events in order; of those that are not there, findings say so. Thread: one.
class LedgerAudit {
  public:
    void add(const Event& event);
    /// Something that the reader of the events found.
    void find(LedgerFinding finding);
    uint64_t lastStep() const { return lastStep_; }
    /// Once, after the last event. `log`: the steps of the run's commit log in its order, if that
    /// is there. `growing`: the run is still being written, and may lag behind its log.
    LedgerReport report(const std::optional<std::vector<LogLink>>& log, bool growing = false);

  private:
    void take(const StepCommitted& step);
    void take(const LineageOpened& opened);
    bool followLink(const std::string& link, Chained what, const std::string& of);
    void noteParity(const StepCommitted& step);
    void endStretch();
    void addUp(LedgerReport& out) const;
    void compare(const std::vector<LogLink>& log, bool growing);

    std::map<uint64_t, CommitRecord> steps_;
    bool resumed_ = false;  ///< the data before its first step belongs to an earlier run
    std::vector<SampleRange> quarantined_;
    LedgerReport out_;
    std::vector<LogLink> links_;  ///< of steps
    uint64_t lineage_ = 0;
    uint64_t lastStep_ = 0;
    bool anyStep_ = false;
    bool lost_ = false;               ///< since the last link, the run lost events and said so
    std::vector<std::string> chain_;  ///< every link so far
    bool logLost_ = false;            ///< the run said that its commit log lost its end
    bool goesBack_ = false;           ///< and the next link may follow any before it
    size_t leftOut_ = 0;
    struct Stretch {
        uint64_t first = 0;
        uint64_t last = 0;
        std::vector<int32_t> replicas;
    };
    std::optional<Stretch> stretch_;
};

}  // namespace bulkhead::model
