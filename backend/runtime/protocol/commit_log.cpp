// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/commit_log.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"
#include "backend/runtime/protocol/step_commit.h"

namespace bulkhead::protocol {
namespace {

constexpr uint32_t kEntryMagic = 0x474f4c42;  // "BLOG"
constexpr size_t kFrame = 4 + 4 + 8;

template <class T>
void putRaw(std::string& out, T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    out.append(raw, sizeof(T));
}

template <class T>
T getRaw(std::string_view in, size_t at) {
    T value;
    std::memcpy(&value, in.data() + at, sizeof(T));
    return value;
}

struct Frame {
    LogEntry entry;
    size_t end = 0;
};

/// The body of a frame at `at` that is as it was written, if there is one.
std::optional<std::string_view> bodyAt(std::string_view bytes, size_t at) {
    if (bytes.size() - at < kFrame || getRaw<uint32_t>(bytes, at) != kEntryMagic)
        return std::nullopt;
    const uint32_t length = getRaw<uint32_t>(bytes, at + 4);
    if (length > bytes.size() - at - kFrame) return std::nullopt;
    const std::string_view body = bytes.substr(at + kFrame, length);
    if (XXH3_64bits(body.data(), body.size()) != getRaw<uint64_t>(bytes, at + 8))
        return std::nullopt;
    return body;
}

/// The whole, valid frame at `at`, if there is one.
std::optional<Frame> frameAt(std::string_view bytes, size_t at) {
    const auto body = bodyAt(bytes, at);
    if (!body) return std::nullopt;
    Decoder decoder(*body, /*mayEndEarly=*/true);
    LogEntry entry;
    decoder.get(entry);
    if (!decoder.finish().ok()) return std::nullopt;
    return Frame{std::move(entry), at + kFrame + body->size()};
}

}  // namespace

Chained chained(const LogLineage& entry) {
    return LineageLink{entry.lineage, entry.fromStep};
}
Chained chained(const LogCommit& entry) {
    const StepFigures& figures = entry.figures;
    return StepLink{entry.record, meanLoss(figures.votes), figures.gradNorm, figures.parity};
}
Chained chained(const LogQuarantine& entry) {
    return QuarantineLink{entry.range};
}
Chained chained(const LogDispute& entry) {
    return entry.dispute;
}

std::string encodeEntry(const LogEntry& entry) {
    const std::string body = encode(entry);
    std::string out;
    out.reserve(kFrame + body.size());
    putRaw(out, kEntryMagic);
    putRaw(out, static_cast<uint32_t>(body.size()));
    putRaw(out, static_cast<uint64_t>(XXH3_64bits(body.data(), body.size())));
    return out + body;
}

absl::StatusOr<DecodedLog> decodeLog(std::string_view bytes) {
    DecodedLog log;
    if (bytes.size() < kLogHeader.size()) {
        // The very first write may be torn too.
        if (kLogHeader.substr(0, bytes.size()) != bytes)
            return absl::InvalidArgumentError("this is not a commit log: its header is missing");
        log.tornTail = !bytes.empty();
        return log;
    }
    if (bytes.substr(0, kLogHeader.size()) != kLogHeader)
        return absl::InvalidArgumentError(
            absl::StrCat("this is not a commit log of this version: it should begin with ",
                         std::string(kLogHeader)));
    size_t at = kLogHeader.size();
    while (at < bytes.size()) {
        auto frame = frameAt(bytes, at);
        if (!frame) break;
        log.entries.push_back(std::move(frame->entry));
        at = frame->end;
    }
    log.validBytes = at;
    log.tornTail = at < bytes.size();
    // No crash leaves bytes with a right checksum that mean nothing: nothing is cut off then.
    if (log.tornTail && bodyAt(bytes, at))
        return absl::FailedPreconditionError(absl::StrCat(
            "the entry at byte ", at,
            " of the commit log is whole, and this build cannot read it: "
            "another build of Bulkhead wrote it; go on with that one, stop the job there, and "
            "resume it with this one"));
    // A crash can only hurt the end. A good entry behind a bad one means the file was damaged.
    std::string magic;
    putRaw(magic, kEntryMagic);
    for (size_t next = at; log.tornTail; ++next) {
        next = bytes.find(magic, next + 1);
        if (next == std::string_view::npos) break;
        if (frameAt(bytes, next))
            return absl::DataLossError(absl::StrCat("the commit log is damaged at byte ", at,
                                                    ", and good entries follow at byte ", next,
                                                    "; put back the file that was there"));
    }
    return log;
}

std::vector<LogEntry> wholeEntries(std::string_view bytes) {
    std::string magic;
    putRaw(magic, kEntryMagic);
    std::vector<LogEntry> entries;
    size_t at = 0;
    while ((at = bytes.find(magic, at)) != std::string_view::npos) {
        auto frame = frameAt(bytes, at);
        at = frame ? frame->end : at + 1;
        if (frame) entries.push_back(std::move(frame->entry));
    }
    return entries;
}

namespace {

class Recovery {
  public:
    Recovery(uint32_t replicas, uint32_t domains) : domains_(domains), ledger_(domains) {
        state_.incarnations.resize(replicas);
    }

    template <class Entry>
    absl::Status take(const Entry& e) {
        if constexpr (requires { e.link; }) state_.link = e.link;
        return apply(e);
    }

    absl::Status apply(const LogTerm& e) {
        if (e.term <= state_.term)
            return absl::DataLossError(
                absl::StrCat("term ", e.term, " does not rise above ", state_.term));
        state_.term = e.term;
        if (!e.run.empty()) state_.run = e.run;
        if (!e.secret.empty()) state_.secret = e.secret;
        return absl::OkStatus();
    }

    absl::Status apply(const LogLineage& e) {
        if (e.lineage <= state_.lineage)
            return absl::DataLossError(
                absl::StrCat("lineage ", e.lineage, " does not rise above ", state_.lineage));
        if (e.ledger.highWater.size() != domains_)
            return absl::DataLossError(absl::StrCat("lineage ", e.lineage, " has ",
                                                    e.ledger.highWater.size(),
                                                    " data domains, the job has ", domains_));
        auto ledger = DataLedger::restore(e.ledger, {});
        if (!ledger.ok()) return absl::DataLossError(ledger.status().message());
        ledger_ = *std::move(ledger);
        ledger_.giveBackAll();
        state_.lineage = e.lineage;
        state_.lineageFromStep = state_.step = e.fromStep;
        state_.resumeFrom = e.resumeFrom;
        state_.updates = e.updates;
        state_.layout = e.layout;
        state_.expertShard = e.expertShard;
        state_.domainShare = e.domainShare;
        state_.last.reset();
        state_.agreed = AgreedHashes();
        std::erase_if(state_.checkpoints,
                      [&](const LogCheckpoint& c) { return c.step > e.fromStep; });
        const bool ours =
            std::any_of(state_.checkpoints.begin(), state_.checkpoints.end(),
                        [&](const LogCheckpoint& c) { return c.path == e.resumeFrom; });
        if (!e.resumeFrom.empty() && !ours) {
            LogCheckpoint other{0,        e.fromStep,    e.updates,     e.resumeFrom,
                                e.layout, e.expertShard, e.domainShare, e.ledger};
            other.borrowed = true;
            state_.checkpoints.push_back(std::move(other));
        }
        useLayout(e.layout);
        for (auto it = state_.productiveMs.upper_bound(e.fromStep); it != state_.productiveMs.end();
             it = state_.productiveMs.erase(it))
            state_.productiveSum -= it->second;
        return absl::OkStatus();
    }

    absl::Status apply(const LogCommit& e) {
        const CommitRecord& r = e.record;
        if (r.lineage != state_.lineage || r.step != state_.step + 1)
            return absl::DataLossError(absl::StrCat("a record of lineage ", r.lineage, " step ",
                                                    r.step, " follows lineage ", state_.lineage,
                                                    " step ", state_.step));
        if (absl::Status s = ledger_.replayCommit(r); !s.ok())
            return absl::DataLossError(s.message());
        state_.step = r.step;
        state_.updates = r.updates;
        state_.epoch = std::max(state_.epoch, r.epoch);
        state_.last = r;
        if (!e.figures.parity.empty())
            state_.agreed.note(r.step - 1, e.figures.parity.front().hashes);
        state_.productiveMs[r.step] = e.figures.productiveMs;
        state_.productiveSum += e.figures.productiveMs;
        for (const Contribution& c : r.contributors) raiseIncarnation(c.replica, c.incarnation);
        return absl::OkStatus();
    }

    absl::Status apply(const LogQuarantine& e) {
        // A range that was leased when it was quarantined may lie beyond what records have used so
        // far.
        ledger_.widen(e.range);
        if (absl::Status s = ledger_.quarantine(e.range); !s.ok())
            return absl::DataLossError(s.message());
        return absl::OkStatus();
    }

    absl::Status apply(const LogIncarnation& e) {
        raiseIncarnation(e.replica, e.incarnation);
        return absl::OkStatus();
    }

    absl::Status apply(const LogCheckpoint& e) {
        state_.checkpoints.push_back(e);
        uint64_t oldest = e.step;
        for (const LogCheckpoint& c : state_.checkpoints) oldest = std::min(oldest, c.step);
        state_.productiveMs.erase(state_.productiveMs.begin(),
                                  state_.productiveMs.upper_bound(oldest));
        if (state_.orders) state_.orders->checkpoint = false;
        return absl::OkStatus();
    }

    absl::Status apply(const LogCheckpointsDropped& e) {
        std::vector<std::string>& list = e.unusable ? state_.unusable : state_.discarded;
        for (const std::string& path : e.paths) {
            std::erase_if(state_.checkpoints,
                          [&](const LogCheckpoint& c) { return c.path == path; });
            list.push_back(path);
        }
        if (state_.discarded.size() > kDiscardedKept)
            state_.discarded.erase(state_.discarded.begin(),
                                   state_.discarded.end() - ptrdiff_t{kDiscardedKept});
        return absl::OkStatus();
    }

    absl::Status apply(const LogEpochs& e) {
        state_.epoch = std::max(state_.epoch, e.upTo);
        return absl::OkStatus();
    }

    absl::Status apply(const LogDispute& e) {
        DisputedSteps& steps =
            state_.disputed
                .try_emplace(e.dispute.lineage,
                             DisputedSteps{state_.agreed.lastAgreed(), e.dispute.step})
                .first->second;
        steps.upTo = std::max(steps.upTo, e.dispute.step);
        return absl::OkStatus();
    }

    absl::Status apply(const LogLayoutTried& e) {
        useLayout(e.layout);
        return absl::OkStatus();
    }

    absl::Status apply(const LogLayout& e) {
        useLayout(e.layout);
        state_.layout = e.layout;
        state_.agreed.clear();
        state_.expertShard = e.expertShard;
        state_.domainShare = e.domainShare;
        return absl::OkStatus();
    }

    absl::Status apply(const LogFinished&) {
        state_.finished = true;
        return absl::OkStatus();
    }

    absl::Status apply(const LogOrders& e) {
        state_.orders = e;
        return absl::OkStatus();
    }

    /// With its ledger settled.
    const RecoveredState& settled() {
        state_.ledger = ledger_.settledState();
        return state_;
    }
    const RecoveredState& state() const { return state_; }

  private:
    void useLayout(uint64_t layout) { state_.layoutTried = std::max(state_.layoutTried, layout); }

    void raiseIncarnation(int32_t replica, uint32_t incarnation) {
        if (replica < 0) return;
        const auto i = static_cast<size_t>(replica);
        if (i < state_.incarnations.size())
            state_.incarnations[i] = std::max(state_.incarnations[i], incarnation);
    }

    uint32_t domains_;
    DataLedger ledger_;
    RecoveredState state_;
};

}  // namespace

absl::StatusOr<RecoveredState> recoverState(const std::vector<LogEntry>& entries, uint32_t replicas,
                                            uint32_t domains, const LogObserver& observer) {
    Recovery recovery(replicas, domains);
    for (size_t i = 0; i < entries.size(); ++i) {
        const absl::Status s =
            std::visit([&](const auto& e) { return recovery.take(e); }, entries[i]);
        if (!s.ok())
            return absl::DataLossError(absl::StrCat("commit log, entry ", i + 1, " of ",
                                                    entries.size(), ": ", s.message(),
                                                    "; resume from a checkpoint instead"));
        if (observer)
            observer(entries[i], std::holds_alternative<LogCommit>(entries[i]) ? recovery.settled()
                                                                               : recovery.state());
    }
    return recovery.settled();
}

}  // namespace bulkhead::protocol
