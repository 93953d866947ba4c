// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/history_sink.h"

#include <absl/strings/str_cat.h>
#include <absl/time/time.h>
#include <spdlog/spdlog.h>

#include "backend/common/file_system.h"
#include "backend/model/json.h"

namespace bulkhead::daemon {
namespace {

constexpr std::chrono::hours kRemoveEvery{1};

/// The text by which a person tells runs apart: "4f1c..., begun 2026-01-31 12:00:00 UTC".
std::string named(const std::string& uuid, int64_t createdNs) {
    return absl::StrCat(uuid, ", begun ",
                        absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixNanos(createdNs),
                                         absl::UTCTimeZone()));
}

}  // namespace

/// `fresh`: the run is new, and its folder is not there yet.
history::WriterOptions HistorySink::writerOptions(const std::string& run, bool fresh) const {
    history::WriterOptions options;
    options.files = &files_;
    options.fence = fence_;
    options.onHealth = [run](const absl::Status& status) {
        if (status.ok())
            spdlog::info("history of {} is written again", run);
        else
            spdlog::error("history of {}: {}", run, std::string(status.message()));
    };
    if (fresh)
        options.isTaken = [this](const std::string& name) {
            return std::filesystem::exists(runs_ / name);
        };
    return options;
}

std::string HistorySink::identityFile(const std::string& run) const {
    return (runs_ / run / "history").string();
}

/// Without a uuid: the run is older than the file that says it.
HistorySink::Identity HistorySink::identity(const std::string& run) const {
    const auto text = files_.read(identityFile(run));
    if (!text.ok()) return {};
    return model::fromJsonText<Identity>(*text).value_or(Identity{});
}

/// The file may be replaced by one that has another run of that name.
void HistorySink::keepIdentity(const std::string& run, const history::StoredRun& stored) const {
    if (identity(run).uuid == stored.uuid) return;
    const absl::Status kept =
        writeDurably(files_, identityFile(run),
                     model::toJsonText(Identity{stored.uuid, stored.createdNs}) + "\n");
    if (!kept.ok()) spdlog::warn("run {}: {}", run, std::string(kept.message()));
}

absl::StatusOr<std::string> HistorySink::open(
    const std::string& job, std::function<absl::Status(const std::string&)> claim) {
    closeEnded();
    history::WriterOptions options = writerOptions(job, true);
    options.claim = std::move(claim);
    auto writer = history::RunWriter::create(file_, job, clock_, std::move(options));
    if (!writer.ok()) return writer.status();
    const std::string name = (*writer)->info().name;
    if (absl::Status s = files_.makeFolder((runs_ / name).string()); !s.ok())
        spdlog::warn("run {}: {}", name, std::string(s.message()));
    keepIdentity(name, (*writer)->info());
    const MutexLock lock(mutex_);
    kept_[name] = {*std::move(writer), ""};
    return name;
}

void HistorySink::closeFailed(const std::string& run, const std::string& why) {
    decltype(kept_)::node_type ended;
    {
        const MutexLock lock(mutex_);
        ended = kept_.extract(run);
    }
    if (ended.empty() || ended.mapped().writer == nullptr) return;
    std::unique_ptr<history::RunWriter> writer = std::move(ended.mapped().writer);
    absl::Status closed;
    if (writer->lastSeq() > 0) {
        model::Event event;
        event.seq = writer->lastSeq() + 1;
        event.timeNs = clock_.unixNs();
        event.severity = model::Severity::kError;
        event.body = model::RunFinished{.ok = false, .why = why};
        closed = writer->append(event);
    } else {
        const int64_t id = writer->runId();
        writer.reset();
        closed = history::removeUnusedRun(file_, id);
    }
    if (!closed.ok()) spdlog::warn("run {}: {}", run, std::string(closed.message()));
    for (const char* part : {"", ".new"})  // the second where the disk was full
        (void)files_.remove(identityFile(run) + part);
    std::error_code ignored;
    std::filesystem::remove(runs_ / run, ignored);  // an empty folder only
}

absl::StatusOr<std::unique_ptr<history::RunWriter>> HistorySink::goOn(
    const std::string& run) const {
    const Identity ours = identity(run);
    history::WriterOptions options = writerOptions(run, false);
    options.uuid = ours.uuid;
    // A run that is resumed from may be another folder's.
    const auto begin = [&]() -> absl::StatusOr<std::unique_ptr<history::RunWriter>> {
        if (!files_.exists((runs_ / run).string()))
            return absl::NotFoundError(
                absl::StrCat(file_.string(), ": no run ", run, " is recorded there"));
        return history::RunWriter::create(file_, run, clock_, std::move(options));
    };
    std::error_code error;
    if (std::filesystem::file_size(file_, error) == 0 || error) return begin();
    const auto reader = history::RunReader::open(file_);
    if (!reader.ok()) return reader.status();
    history::RunFilter all;
    all.limit = UINT32_MAX;
    const auto runs = (*reader)->runs(all);
    if (!runs.ok()) return runs.status();
    const history::StoredRun* stored = nullptr;
    for (const history::StoredRun& one : *runs)
        if (one.uuid == ours.uuid || (one.name == run && stored == nullptr)) stored = &one;
    if (stored == nullptr) return begin();
    if (!ours.uuid.empty() && stored->uuid != ours.uuid)
        return absl::FailedPreconditionError(absl::StrCat(
            file_.string(), ": its run ", run, " is another one (",
            named(stored->uuid, stored->createdNs), ") than the run in ", (runs_ / run).string(),
            " (", named(ours.uuid, ours.createdNs),
            "); put back the file that was there, move this one away (the history is then made "
            "anew from the commit log), or name another file with --db"));
    return history::RunWriter::resume(file_, stored->id, clock_, std::move(options));
}

absl::StatusOr<model::RunState> HistorySink::resume(const std::string& run) {
    {
        const MutexLock lock(mutex_);
        // All of them before the file is opened anew: SQLite removes what lies beside a file when
        // its last connection ends, by name.
        const auto mine = kept_.find(run);
        const bool lost = mine != kept_.end() && mine->second.writer &&
                          absl::IsAborted(mine->second.writer->health());
        for (auto& [name, kept] : kept_)
            if (kept.writer && (name == run || lost || absl::IsAborted(kept.writer->health()))) {
                if (kept.why.empty()) kept.why = std::string(kept.writer->health().message());
                if (kept.why.empty()) kept.why = file_.string() + ": is opened anew";
                kept.writer.reset();
            }
    }
    auto writer = goOn(run);
    if (absl::IsNotFound(writer.status())) return writer.status();
    const MutexLock lock(mutex_);
    Kept& kept = kept_[run];
    if (!writer.ok()) {
        const std::string why(writer.status().message());
        if (why != kept.why) spdlog::error("history of {} cannot be continued: {}", run, why);
        kept.why = why;
        return writer.status();
    }
    // Nothing may lie in the place of a folder that is away: it comes back there.
    if (files_.exists((runs_ / run).string())) keepIdentity(run, (*writer)->info());
    kept = {*std::move(writer), ""};
    return kept.writer->takePast();
}

std::vector<std::string> HistorySink::withoutEnd() const {
    std::vector<std::string> names;
    const auto reader = history::RunReader::open(file_);
    if (!reader.ok()) return names;  // none was recorded yet
    history::RunFilter all;
    all.limit = UINT32_MAX;
    const auto runs = (*reader)->runs(all);
    if (!runs.ok()) {
        spdlog::error("history's runs cannot be listed: {}", std::string(runs.status().message()));
        return names;
    }
    for (const history::StoredRun& run : *runs)
        if (run.phase == "interrupted") names.push_back(run.name);
    return names;
}

void HistorySink::onEvent(const std::string& run, const model::Event& event) {
    const MutexLock lock(mutex_);
    const auto it = kept_.find(run);
    if (it == kept_.end() || !it->second.writer) return;
    const absl::Status status = it->second.writer->append(event);
    if (!status.ok() && !absl::IsResourceExhausted(status) && !absl::IsAborted(status))
        spdlog::error("history of {}: {}", run, std::string(status.message()));
    it->second.ended = it->second.ended || std::holds_alternative<model::RunFinished>(event.body);
}

/// A writer has a thread and five descriptors.
void HistorySink::closeEnded() {
    std::vector<Kept> closed;  // without the lock
    const MutexLock lock(mutex_);
    for (auto it = kept_.begin(); it != kept_.end();) {
        Kept& kept = it->second;
        const bool whole = kept.ended && kept.writer && kept.writer->health().ok() &&
                           kept.writer->durableSeq() == kept.writer->lastSeq();
        if (whole) closed.push_back(std::move(kept));
        it = whole ? kept_.erase(it) : std::next(it);
    }
}

std::string HistorySink::lost(const std::string& run) const {
    const MutexLock lock(mutex_);
    const auto it = kept_.find(run);
    if (it == kept_.end()) return "";
    if (!it->second.writer) return it->second.why;
    const absl::Status health = it->second.writer->health();
    return absl::IsAborted(health) ? std::string(health.message()) : "";
}

/// The writer leaves beside the file what it could not put into it, for the next one.
void HistorySink::release(const std::string& run) {
    decltype(kept_)::node_type released;  // its writer writes what it has, without the lock
    const MutexLock lock(mutex_);
    released = kept_.extract(run);
}

std::string HistorySink::lacks(const std::string& run) const {
    const MutexLock lock(mutex_);
    const auto it = kept_.find(run);
    if (it == kept_.end()) return "";
    if (!it->second.writer) return absl::StrCat("history is not written: ", it->second.why);
    const history::RunWriter& writer = *it->second.writer;
    if (const absl::Status health = writer.health(); !health.ok())
        return absl::StrCat("history ends with event ", writer.durableSeq(), " of ",
                            writer.lastSeq(), ": ", std::string(health.message()));
    if (const uint64_t missing = writer.info().missing; missing > 0)
        return absl::StrCat("history lacks ", missing, " events");
    return "";
}

HistorySink::~HistorySink() {
    {
        const MutexLock lock(mutex_);
        ending_ = true;
        wake_.notify_all();
    }
    if (cleaner_.joinable()) cleaner_.join();
}

bool HistorySink::isEnding() const {
    const MutexLock lock(mutex_);
    return ending_;
}

void HistorySink::removeOld(uint32_t days) {
    constexpr int64_t kDayNs = 86'400LL * 1'000'000'000;
    const auto removed = history::removeOldRuns(
        file_, {clock_.unixNs() - days * kDayNs,
                [this](const std::string& name) { return files_.exists((runs_ / name).string()); },
                [this] { return !isEnding(); }, fence_});
    if (!removed.ok())
        return spdlog::warn("old runs stay in the history: {}",
                            std::string(removed.status().message()));
    for (const std::string& name : *removed)
        spdlog::info("the history of {} is removed (--history-keep {})", name, days);
}

void HistorySink::keepOnly(uint32_t days) {
    cleaner_ = Thread([this, days] {
        while (!isEnding()) {
            removeOld(days);
            MutexLock lock(mutex_);
            wake_.wait_for(lock, kRemoveEvery,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_; });
        }
    });
}

void HistorySink::flush() {
    const MutexLock lock(mutex_);
    for (const auto& [run, kept] : kept_) {
        if (!kept.writer) continue;
        if (absl::Status status = kept.writer->flush(); !status.ok())
            spdlog::error("history of {}: {}", run, std::string(status.message()));
    }
}

}  // namespace bulkhead::daemon
