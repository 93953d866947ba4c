// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/describe.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace bulkhead::simulation {
namespace {

std::string exchangeName(uint64_t step, uint64_t epoch, uint32_t attempt) {
    return absl::StrCat("step ", step, " epoch ", epoch, " attempt ", attempt);
}

std::string names(const std::vector<Contribution>& contributors) {
    return absl::StrJoin(contributors, ", ", [](std::string* out, const Contribution& c) {
        absl::StrAppend(out, "r", c.replica, " #", c.incarnation, " [",
                        absl::StrJoin(c.ranges, " ",
                                      [](std::string* o, const SampleRange& r) {
                                          absl::StrAppend(o, r.domain, ":", r.begin, "-", r.end);
                                      }),
                        "]");
    });
}

struct FactText {
    std::string operator()(const fact::JobPhaseChanged& f) const {
        return absl::StrCat("the job is ", std::string(enumName(f.phase)), ": ", f.why);
    }
    std::string operator()(const fact::LineageOpened& f) const {
        return absl::StrCat("lineage ", f.lineage, " begins after step ", f.fromStep, ": ", f.why);
    }
    std::string operator()(const fact::ReplicaChanged& f) const {
        return absl::StrCat("r", f.replica, " #", f.incarnation, " is ",
                            std::string(enumName(f.state)), f.why.empty() ? "" : ": ", f.why);
    }
    std::string operator()(const fact::QuorumDecided& f) const {
        return absl::StrCat("quorum of ", exchangeName(f.step, f.epoch, f.attempt), ": ",
                            names(f.contributors));
    }
    std::string operator()(const fact::StepCommitted& f) const {
        return absl::StrCat("step ", f.record.step, " is committed");
    }
    std::string operator()(const fact::StepRedone& f) const {
        return absl::StrCat("step ", f.step, " again: ", f.why);
    }
    std::string operator()(const fact::EvidenceSeen& f) const {
        return absl::StrCat("hears from ", f.reporter, ": ", std::string(enumName(f.kind)), " of r",
                            f.replica, f.detail.empty() ? "" : ", ", f.detail);
    }
    std::string operator()(const fact::StepsSuspect& f) const {
        return absl::StrCat("steps ", f.first, " to ", f.last, " are suspect: ", f.why);
    }
    std::string operator()(const fact::RangeQuarantined& f) const {
        return absl::StrCat("quarantined: ", f.range.domain, ":", f.range.begin, "-", f.range.end,
                            ", ", f.why);
    }
    std::string operator()(const fact::OperatorAnswered& f) const {
        return f.ok ? "" : absl::StrCat("refuses: ", f.outcome);
    }
    std::string operator()(const fact::LayoutChanged& f) const {
        return f.ok ? absl::StrCat("layout ", f.layout, " counts")
                    : absl::StrCat("the layout stays: ", f.why);
    }
    std::string operator()(const fact::ParityPaced& f) const {
        return absl::StrCat("states are compared every ", f.everySteps, " steps: a hash takes ",
                            f.hashMs, " ms, a step ", f.stepMs);
    }
    std::string operator()(const fact::CheckpointWritten& f) const {
        return absl::StrCat("the checkpoint of step ", f.done.step, f.done.ok ? " is" : " is not",
                            " written");
    }
    template <class T>
    std::string operator()(const T&) const {
        return "";
    }
};

struct ActionText {
    std::string operator()(const SendReplica& a) const {
        if (const auto* abort = std::get_if<Abort>(&a.message))
            return absl::StrCat("aborts ", exchangeName(abort->step, abort->epoch, abort->attempt),
                                " for r", a.replica, ": ", abort->why);
        if (const auto* c = std::get_if<Commit>(&a.message))
            return absl::StrCat("sends the commit of step ", c->record.step, " to r", a.replica);
        if (const auto* k = std::get_if<KeepSnapshot>(&a.message))
            return absl::StrCat("tells r", a.replica, k->keep ? " to keep" : " to drop",
                                " a snapshot of step ", k->step);
        if (const auto* f = std::get_if<Fetch>(&a.message))
            return absl::StrCat("tells r", a.replica, " to fetch step ", f->snapshotStep);
        if (std::holds_alternative<ReplayLast>(a.message))
            return absl::StrCat("asks r", a.replica, " to replay its last step");
        if (std::holds_alternative<ReplicaFormed>(a.message))
            return absl::StrCat("r", a.replica, " is formed");
        return "";
    }
    std::string operator()(const AppendLog& a) const {
        if (const auto* c = std::get_if<LogCommit>(&a.entry))
            return absl::StrCat("appends the record of ",
                                exchangeName(c->record.step, c->record.epoch, c->record.attempt));
        return "";
    }
    std::string operator()(const StartReplica& a) const {
        return absl::StrCat("starts r", a.replica, " #", a.incarnation);
    }
    std::string operator()(const StopReplica& a) const {
        return absl::StrCat("stops r", a.replica, " #", a.incarnation, ": ", a.why);
    }
    std::string operator()(const Emit& a) const { return std::visit(FactText{}, a.fact); }
    std::string operator()(const Finished& a) const {
        return absl::StrCat("the job ends: ", a.why);
    }
    template <class T>
    std::string operator()(const T&) const {
        return "";
    }
};

struct RankText {
    std::string operator()(const BeginStep& a) const {
        return absl::StrCat(a.enter     ? "enters "
                            : a.compute ? "computes "
                                        : "exchanges again ",
                            exchangeName(a.quorum.step, a.quorum.epoch, a.quorum.attempt));
    }
    std::string operator()(const AbortExchange& a) const {
        return absl::StrCat("ends its exchange of ",
                            exchangeName(a.id.step, a.id.epoch, a.id.attempt), ": ", a.why);
    }
    std::string operator()(const ApplyCommit& a) const {
        return absl::StrCat("applies step ", a.record.step);
    }
    std::string operator()(const HashState& a) const {
        return absl::StrCat("hashes its state after step ", a.step);
    }
    std::string operator()(const ReplayCommit& a) const {
        return absl::StrCat("replays step ", a.record.step, a.exchanged ? " by its own sum" : "");
    }
    std::string operator()(const BeginFetch& a) const {
        return absl::StrCat("fetches step ", a.fetch.snapshotStep, " of ", a.fetch.sources.size(),
                            " sources");
    }
    std::string operator()(const SendLeader& a) const {
        const auto* v = std::get_if<RankVote>(&a.message);
        if (v == nullptr) return "";
        return absl::StrCat("votes ", v->complete ? "yes" : "no", " on ",
                            exchangeName(v->step, v->epoch, v->attempt));
    }
    std::string operator()(const MoveLayout& a) const {
        return absl::StrCat("moves to layout ", a.layout);
    }
    std::string operator()(const AbandonMove& a) const {
        return absl::StrCat("would rather not move to layout ", a.layout);
    }
    std::string operator()(const SettleLayout& a) const {
        return absl::StrCat(a.adopt ? "adopts layout " : "drops layout ", a.layout);
    }
    std::string operator()(const ExitRank& a) const { return absl::StrCat("exits: ", a.why); }
    template <class T>
    std::string operator()(const T&) const {
        return "";
    }
};

}  // namespace

std::string describe(const Fact& fact) {
    return std::visit(FactText{}, fact);
}
std::string describe(const Action& action) {
    return std::visit(ActionText{}, action);
}
std::string describe(const RankAction& action) {
    return std::visit(RankText{}, action);
}

std::string stepName(const CommitRecord& r) {
    return absl::StrCat("step ", r.step, " (lineage ", r.lineage, ", epoch ", r.epoch, ", attempt ",
                        r.attempt, ")");
}

}  // namespace bulkhead::simulation
