// SPDX-License-Identifier: Apache-2.0
#include "backend/service/run_library.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/model/json.h"
#include "backend/model/names.h"

namespace bulkhead::service {
namespace {

constexpr MonoNs kUnwatchedLimit = 60 * kSecond;

model::RunInfo infoOf(const history::StoredRun& run) {
    model::RunInfo out;
    out.id = run.name;
    out.uuid = run.uuid;
    out.note = run.note;
    out.workload = run.workload;
    out.phase = run.phase;
    out.resumedFrom = run.resumedFrom;
    out.startedNs = run.startedNs;
    out.endedNs = run.endedNs;
    out.replicas = run.replicas;
    out.shards = run.shards;
    out.steps = run.lastStep;
    out.events = run.events;
    out.lastSeq = run.lastSeq;
    out.missing = run.missing;
    out.incidents = run.incidents;
    out.faults = run.faults;
    if (run.lastStep > 0) {
        out.lastLoss = run.lastLoss;
        out.effectiveTime = run.effectiveTime;
    }
    return out;
}

struct Opened {
    std::unique_ptr<history::RunReader> reader;
    history::StoredRun run;
};

absl::StatusOr<Opened> openRun(const std::filesystem::path& file, const std::string& run) {
    auto reader = history::RunReader::open(file);
    if (!reader.ok()) return reader.status();
    auto info = (*reader)->findRun(run);
    if (!info.ok()) return info.status();
    return Opened{*std::move(reader), *std::move(info)};
}

/// The reader exports whole ledgers; a part of one is written here, in the same forms.
absl::Status writeRows(const std::vector<history::LedgerRow>& rows, std::ostream& out) {
    for (const history::LedgerRow& row : rows) out << model::toJsonText(row) << '\n';
    return out ? absl::OkStatus() : absl::UnavailableError("the reader went away");
}

}  // namespace

absl::StatusOr<std::vector<model::RunInfo>> RunLibrary::list(const std::string& text) const {
    // A daemon that has not yet run anything has no file, and no runs: that is no error.
    if (!std::filesystem::exists(file_)) return std::vector<model::RunInfo>();
    auto reader = history::RunReader::open(file_);
    if (!reader.ok()) return reader.status();
    history::RunFilter filter;
    filter.text = text;
    auto runs = (*reader)->runs(filter);
    if (!runs.ok()) return runs.status();
    std::vector<model::RunInfo> out;
    for (const history::StoredRun& run : *runs) {
        out.push_back(infoOf(run));
        if (!folders_.supersededBy) continue;
        if (const std::string by = folders_.supersededBy(run.name); !by.empty())
            out.back().phase = std::string(model::kSupersededBy) + by;
    }
    return out;
}

absl::StatusOr<model::EventPage> RunLibrary::events(const model::EventQuery& query) const {
    const std::vector<std::string_view> known = model::eventTypes();
    for (const std::string& type : query.types)
        if (std::find(known.begin(), known.end(), type) == known.end())
            return absl::InvalidArgumentError("there are no events of type \"" +
                                              model::shortened(type, 60) + "\"" +
                                              model::hintFor(type, known));
    auto opened = openRun(file_, query.run);
    if (!opened.ok()) return opened.status();
    history::EventFilter wanted;
    wanted.fromSeq = query.fromSeq;
    if (query.toSeq > 0) wanted.toSeq = query.toSeq;
    wanted.fromNs = query.fromNs;
    if (query.toNs > 0) wanted.toNs = query.toNs;
    wanted.types = query.types;
    wanted.minSeverity = query.minSeverity;
    if (query.replica >= 0) wanted.replica = query.replica;
    wanted.text = query.text;
    wanted.newestFirst = query.newestFirst;
    wanted.limit = std::clamp(query.limit, 1u, kMostEvents);
    auto events = opened->reader->events(opened->run.id, wanted);
    if (!events.ok()) return events.status();
    model::EventPage page;
    page.events = *std::move(events);
    if (page.events.size() == wanted.limit) {
        const uint64_t last = page.events.back().seq;
        page.nextSeq = query.newestFirst ? last - 1 : last + 1;
    }
    return page;
}

absl::StatusOr<model::RunState> RunLibrary::state(const std::string& run, uint64_t seq) const {
    auto opened = openRun(file_, run);
    if (!opened.ok()) return opened.status();
    return opened->reader->stateAtSeq(opened->run.id, seq == 0 ? opened->run.lastSeq : seq);
}

absl::StatusOr<model::LedgerReport> RunLibrary::audit(const std::string& run) const {
    auto opened = openRun(file_, run);
    if (!opened.ok()) return opened.status();
    return opened->reader->audit(opened->run.id,
                                 [&]() -> absl::StatusOr<std::vector<model::LogLink>> {
                                     if (!folders_.commitLog)
                                         return absl::NotFoundError("no commit logs");
                                     return folders_.commitLog(opened->run.name);
                                 });
}

absl::Status RunLibrary::write(const std::string& run, What what, history::ExportFormat format,
                               uint64_t fromStep, uint64_t toStep, std::ostream& out) const {
    auto opened = openRun(file_, run);
    if (!opened.ok()) return opened.status();
    const int64_t id = opened->run.id;
    if (what == What::kEvents) {
        if (format == history::ExportFormat::kCsv)
            return absl::InvalidArgumentError(
                "events have no table form; export them as JSON lines (jsonl)");
        return opened->reader->exportEvents(id, out);
    }
    if (fromStep == 0 && toStep == 0) return opened->reader->exportLedger(id, format, out);
    if (format == history::ExportFormat::kCsv)
        return absl::InvalidArgumentError(
            "a part of a ledger is exported as JSON lines only; leave the steps out for CSV");
    history::LedgerFilter query;
    query.fromStep = fromStep;
    if (toStep > 0) query.toStep = toStep;
    auto rows = opened->reader->ledger(id, query);
    if (!rows.ok()) return rows.status();
    return writeRows(*rows, out);
}

absl::StatusOr<std::string> RunLibrary::openReplay(const std::string& run,
                                                   const std::string& caller) {
    auto replay = Replay::open(file_, run, clock_);
    if (!replay.ok()) return replay.status();
    std::vector<std::shared_ptr<Replay>> expired;  // ended outside the lock: they join a thread
    const MutexLock lock(mutex_);
    size_t own = 0;
    for (auto it = replays_.begin(); it != replays_.end();) {
        if (it->second.replay->unwatchedFor() > kUnwatchedLimit) {
            expired.push_back(it->second.replay);
            it = replays_.erase(it);
        } else {
            own += it->second.caller == caller;
            ++it;
        }
    }
    if (own >= kMostReplaysOfOne)
        return absl::ResourceExhaustedError(absl::StrCat(
            caller, " has ", kMostReplaysOfOne,
            " replays open, and one caller may have no more at a time; close one first"));
    if (replays_.size() >= kMostReplays)
        return absl::ResourceExhaustedError("32 replays are open; close one first");
    const std::string id = "replay-" + std::to_string(++opened_);
    replays_[id] = {caller, *std::move(replay)};
    return id;
}

absl::StatusOr<std::shared_ptr<Replay>> RunLibrary::find(const std::string& replay,
                                                         const std::string& caller) {
    const MutexLock lock(mutex_);
    const auto it = replays_.find(replay);
    if (it == replays_.end() || it->second.caller != caller)
        return absl::NotFoundError("there is no replay \"" + replay + "\"; open the run again");
    return it->second.replay;
}

absl::StatusOr<model::ReplayPosition> RunLibrary::controlReplay(const std::string& replay,
                                                                const std::string& caller,
                                                                const model::ReplayControl& order) {
    auto found = find(replay, caller);
    if (!found.ok()) return found.status();
    return (*found)->control(order);
}

absl::Status RunLibrary::closeReplay(const std::string& replay, const std::string& caller) {
    auto found = find(replay, caller);
    if (!found.ok()) return found.status();
    (*found)->end();
    const MutexLock lock(mutex_);
    replays_.erase(replay);
    return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Feed>> RunLibrary::replayFeed(const std::string& replay,
                                                             const std::string& caller) {
    auto found = find(replay, caller);
    if (!found.ok()) return found.status();
    return (*found)->feed();
}

}  // namespace bulkhead::service
