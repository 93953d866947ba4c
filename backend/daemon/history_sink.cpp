// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/history_sink.h"

#include <spdlog/spdlog.h>

namespace bulkhead::daemon {

history::WriterOptions HistorySink::writerOptions(const std::string& run) const {
    history::WriterOptions options;
    options.onHealth = [run](const absl::Status& status) {
        if (status.ok())
            spdlog::info("history of {} is written again", run);
        else
            spdlog::error("history of {}: {}", run, std::string(status.message()));
    };
    return options;
}

absl::StatusOr<std::string> HistorySink::open(const std::string& job) {
    auto writer = history::RunWriter::create(file_, job, clock_, writerOptions(job));
    if (!writer.ok()) return writer.status();
    const std::string name = (*writer)->info().name;
    const std::lock_guard lock(mutex_);
    writers_[name] = *std::move(writer);
    return name;
}

void HistorySink::closeFailed(const std::string& run, const std::string& why) {
    model::Event event;
    event.seq = 1;
    event.timeNs = clock_.unixNs();
    event.severity = model::Severity::kError;
    event.body = model::RunFinished{.ok = false, .why = why};
    onEvent(run, event);
    const std::lock_guard lock(mutex_);
    writers_.erase(run);
}

model::RunState HistorySink::resume(const std::string& run) {
    absl::StatusOr<history::StoredRun> stored = absl::NotFoundError("no history file");
    if (const auto reader = history::RunReader::open(file_); reader.ok())
        stored = (*reader)->findRun(run);
    // The writer first: it brings into the file what the one before it left beside it.
    auto writer = stored.ok()
                      ? history::RunWriter::resume(file_, stored->id, clock_, writerOptions(run))
                      : history::RunWriter::create(file_, run, clock_, writerOptions(run));
    if (!writer.ok())
        spdlog::error("history of {} cannot be continued: {}", run,
                      std::string(writer.status().message()));
    model::RunState state;
    if (stored.ok()) {
        const uint64_t last = writer.ok() ? (*writer)->lastSeq() : stored->lastSeq;
        if (const auto reader = history::RunReader::open(file_); reader.ok()) {
            auto folded = (*reader)->stateAtSeq(stored->id, last);
            if (folded.ok()) state = *std::move(folded);
        }
        state.seq = last;
    }
    if (!writer.ok()) return state;
    const std::lock_guard lock(mutex_);
    writers_[run] = *std::move(writer);
    return state;
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
    const std::lock_guard lock(mutex_);
    const auto it = writers_.find(run);
    if (it == writers_.end() || !it->second) return;
    if (absl::Status status = it->second->append(event);
        !status.ok() && !absl::IsResourceExhausted(status))
        spdlog::error("history of {}: {}", run, std::string(status.message()));
}

void HistorySink::flush() {
    const std::lock_guard lock(mutex_);
    for (const auto& [run, writer] : writers_) {
        if (!writer) continue;
        if (absl::Status status = writer->flush(); !status.ok())
            spdlog::error("history of {}: {}", run, std::string(status.message()));
    }
}

}  // namespace bulkhead::daemon
