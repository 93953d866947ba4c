// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/common/fields.h"
#include "backend/model/event.h"

/// Values of lists and queries of jobs, runs and replays: the plain values that the controller, the
/// services, the client library, the console and bulkheadctl share. Pure data.
namespace bulkhead::model {

/// One job of a controller. `revision` grows with every change of membership, policy or phase; a
/// mutating call that expects an older one is refused.
struct JobInfo {
    std::string id;
    std::string name;
    JobPhase phase = JobPhase::kStarting;
    std::string why;  ///< of the phase: the quorum's explanation while it waits
    uint64_t revision = 0;
    std::string run;     ///< id of the run it writes, as RunInfo::id
    uint64_t step = 0;   ///< last committed
    uint64_t steps = 0;  ///< wanted; 0: until told
    uint32_t replicas = 0;
    uint32_t shards = 0;
    uint32_t contributors = 0;  ///< of the last quorum
    int64_t startedNs = 0;
    bool operator==(const JobInfo&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("id", self.id);
        visit("name", self.name);
        visit("phase", self.phase);
        visit("why", self.why);
        visit("revision", self.revision);
        visit("run", self.run);
        visit("step", self.step);
        visit("steps", self.steps);
        visit("replicas", self.replicas);
        visit("shards", self.shards);
        visit("contributors", self.contributors);
        visit("started_ns", self.startedNs);
    }
};

/// One node of a controller, whatever runs there.
struct NodeInfo {
    std::string node;
    std::string address;  ///< on which its ranks listen
    NodeState state = NodeState::kUp;
    std::string why;     ///< it is not up, or its agent is away; empty: neither
    uint32_t slots = 0;  ///< processes it runs at most
    uint32_t used = 0;
    uint32_t gpus = 0;      ///< that its agent gives to ranks
    uint32_t gpusUsed = 0;  ///< by ranks that have one, or are to get one
    bool operator==(const NodeInfo&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("node", self.node);
        visit("address", self.address);
        visit("state", self.state);
        visit("why", self.why);
        visit("slot_count", self.slots);  // a field called slots would be a Qt macro
        visit("used", self.used);
        visit("gpus", self.gpus);
        visit("gpus_used", self.gpusUsed);
    }
};

/// RunInfo::phase of a run that another goes on from: this and the other's id.
inline constexpr std::string_view kSupersededBy = "superseded by ";

/// One run of a history file. Absent figures are absent, never zero.
struct RunInfo {
    std::string id;    ///< unique within its file, e.g. "demo-2"; what every call takes as `run`
    std::string uuid;  ///< across files
    std::string note;  ///< the operator's, free text
    std::string workload;
    /// A JobPhase by name, "interrupted" (no end of it was told), or kSupersededBy and a run.
    std::string phase;
    std::string resumedFrom;
    int64_t startedNs = 0;
    int64_t endedNs = 0;  ///< time of the last event
    uint32_t replicas = 0;
    uint32_t shards = 0;
    uint64_t steps = 0;  ///< last committed
    uint64_t events = 0;
    uint64_t lastSeq = 0;
    uint64_t missing = 0;  ///< events known to be lost
    uint64_t incidents = 0;
    uint64_t faults = 0;
    std::optional<double> lastLoss;
    std::optional<double> effectiveTime;  ///< 0..1
    bool operator==(const RunInfo&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("id", self.id);
        visit("uuid", self.uuid);
        visit("note", self.note);
        visit("workload", self.workload);
        visit("phase", self.phase);
        visit("resumed_from", self.resumedFrom);
        visit("started_ns", self.startedNs);
        visit("ended_ns", self.endedNs);
        visit("replicas", self.replicas);
        visit("shards", self.shards);
        visit("steps", self.steps);
        visit("events", self.events);
        visit("last_seq", self.lastSeq);
        visit("missing", self.missing);
        visit("incidents", self.incidents);
        visit("faults", self.faults);
        visit("last_loss", self.lastLoss);
        visit("effective_time", self.effectiveTime);
    }
};

/// Selects events of a run, in order of their sequence numbers; every condition given must hold.
struct EventQuery {
    std::string run;
    uint64_t fromSeq = 0;
    uint64_t toSeq = 0;  ///< inclusive; 0: no bound
    int64_t fromNs = 0;
    int64_t toNs = 0;                ///< inclusive; 0: no bound
    std::vector<std::string> types;  ///< "step_committed", ...; empty: all
    Severity minSeverity = Severity::kInfo;
    int32_t replica = -1;  ///< events that name it; -1: all
    /// Anywhere in the event's JSON, ASCII case ignored, or the rank that it names: "r2s1".
    std::string text;  ///< empty: all
    bool newestFirst = false;
    uint32_t limit = 1000;  ///< at most so many; the server caps it at 10,000
    bool operator==(const EventQuery&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("run", self.run);
        visit("from_seq", self.fromSeq);
        visit("to_seq", self.toSeq);
        visit("from_ns", self.fromNs);
        visit("to_ns", self.toNs);
        visit("types", self.types);
        visit("min_severity", self.minSeverity);
        visit("replica", self.replica);
        visit("text", self.text);
        visit("newest_first", self.newestFirst);
        visit("limit", self.limit);
    }
};

struct EventPage {
    std::vector<Event> events;
    /// Start of the next page: its fromSeq, or its toSeq when newest first; 0: there is none.
    uint64_t nextSeq = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("events", self.events);
        visit("next_seq", self.nextSeq);
    }
};

/// Position of a replay. Times are those of the run, Unix nanoseconds.
struct ReplayPosition {
    std::string run;
    int64_t timeNs = 0;
    uint64_t seq = 0;   ///< last event shown
    uint64_t step = 0;  ///< last committed by then
    int64_t beginNs = 0;
    int64_t endNs = 0;
    uint64_t endStep = 0;
    double speed = 1;  ///< run seconds per second
    bool paused = false;
    bool atEnd = false;
    std::optional<double> loading = {};  ///< 0..1 of a seek that is under way; absent: none is
    bool operator==(const ReplayPosition&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("run", self.run);
        visit("time_ns", self.timeNs);
        visit("seq", self.seq);
        visit("step", self.step);
        visit("begin_ns", self.beginNs);
        visit("end_ns", self.endNs);
        visit("end_step", self.endStep);
        visit("speed", self.speed);
        visit("paused", self.paused);
        visit("at_end", self.atEnd);
        visit("loading", self.loading);
    }
};

/// One order to a replay; what is absent stays as it is.
struct ReplayControl {
    std::optional<int64_t> seekTimeNs;  ///< clamped to the run
    std::optional<uint64_t> seekStep;   ///< to just after its commit; wins over seekTimeNs
    std::optional<double> speed;        ///< 0.01 to 10,000
    std::optional<bool> paused;
    bool operator==(const ReplayControl&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("seek_time_ns", self.seekTimeNs);
        visit("seek_step", self.seekStep);
        visit("speed", self.speed);
        visit("paused", self.paused);
    }
};

/// A server's description of itself in the version handshake.
struct ServerInfo {
    uint32_t apiVersion = 0;
    std::string build;        ///< version of the program, as "0.2.0"
    std::string fingerprint;  ///< of the described run state; equal: snapshots can be read
    bool readOnly = false;    ///< it serves a run file and has no jobs
    std::string runFile;      ///< path of the history it serves, on its host
    int32_t pid = 0;
    std::string host;
    std::string principal;   ///< as whom it knows the caller
    std::string role;        ///< of the caller: "viewer", "operator" or "admin"
    bool mayInject = false;  ///< the caller may inject faults
    /// It serves TCP beyond this machine without TLS: whoever listens in sees the tokens.
    bool insecure = false;
    int64_t certificateEndsNs = 0;  ///< of its own certificate; 0: it has none
    std::string leader;  ///< its name among controllers of which one leads; empty: it has no others
    std::vector<std::string> standbys;  ///< names of those that stand by
    /// Within a week of `nowNs`: somebody has to renew it.
    bool certificateEndsSoon(int64_t nowNs) const {
        constexpr int64_t kWeekNs = 7 * 86'400LL * 1'000'000'000;
        return certificateEndsNs != 0 && certificateEndsNs - nowNs < kWeekNs;
    }
    bool operator==(const ServerInfo&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("api_version", self.apiVersion);
        visit("build", self.build);
        visit("fingerprint", self.fingerprint);
        visit("read_only", self.readOnly);
        visit("run_file", self.runFile);
        visit("pid", self.pid);
        visit("host", self.host);
        visit("principal", self.principal);
        visit("role", self.role);
        visit("may_inject", self.mayInject);
        visit("insecure", self.insecure);
        visit("certificate_ends_ns", self.certificateEndsNs);
        visit("leader", self.leader);
        visit("standbys", self.standbys);
    }
};

/// One line of a daemon's audit: who asked for what, and what came of it.
struct AuditEntry {
    uint64_t seq = 0;  ///< 1, 2, ...
    int64_t timeNs = 0;
    std::string principal;  ///< empty: nobody it knows
    std::string via;        ///< "socket", "token" or "certificate"; empty: none of them
    std::string peer;       ///< "ipv4:10.0.0.7:51234", "unix:"
    std::string by;         ///< the caller's own word
    std::string call;       ///< "Jobs/StopJob"
    std::string object;     ///< a job's id, or empty
    uint64_t revision = 0;  ///< that the caller expected; 0: any
    std::string request;    ///< as text, cut at 2 KiB
    std::string outcome;    ///< "ok", or a status code's name: "PERMISSION_DENIED"
    std::string message;    ///< its effect; of a refusal or failure the reason
    uint64_t repeated = 0;  ///< equal refusals since the entry before of this kind, not kept
    bool operator==(const AuditEntry&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("seq", self.seq);
        visit("time_ns", self.timeNs);
        visit("principal", self.principal);
        visit("via", self.via);
        visit("peer", self.peer);
        visit("by", self.by);
        visit("call", self.call);
        visit("object", self.object);
        visit("revision", self.revision);
        visit("request", self.request);
        visit("outcome", self.outcome);
        visit("message", self.message);
        visit("repeated", self.repeated);
    }
};

struct AuditQuery {
    uint64_t fromSeq = 0;
    uint32_t limit = 1000;     ///< at most so many; the server caps it at 10,000
    bool newestFirst = false;  ///< from the end backwards; fromSeq 0: the end
    bool check = false;        ///< also compute the chain of hashes anew: reads all of it
    bool operator==(const AuditQuery&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("from_seq", self.fromSeq);
        visit("limit", self.limit);
        visit("newest_first", self.newestFirst);
        visit("check", self.check);
    }
};

struct AuditPage {
    std::vector<AuditEntry> entries;
    uint64_t total = 0;
    std::string head;       ///< hash of the last entry: noted elsewhere, it shows a cut end
    uint64_t brokenAt = 0;  ///< first entry that is missing or was changed; 0: none was found
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("entries", self.entries);
        visit("total", self.total);
        visit("head", self.head);
        visit("broken_at", self.brokenAt);
    }
};

}  // namespace bulkhead::model
