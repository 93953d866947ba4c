// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "backend/history/event_row.h"
#include "backend/history/run_reader.h"
#include "backend/history/run_tables.h"
#include "backend/history/schema.h"
#include "backend/history/state_loading.h"
#include "backend/history/store_status.h"
#include "backend/model/names.h"

namespace bulkhead::history {
namespace {

using model::concat;

/// The tables that the events of a run must give, made again in memory.
class Rebuilt {
  public:
    explicit Rebuilt(int64_t run)
        : db_(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE), run_(run) {
        createSchema(db_);
        SQLite::Statement insert(
            db_, "INSERT INTO runs (id, uuid, name, created_ns) VALUES (?, '', '', 0)");
        insert.bind(1, run);
        insert.exec();
        tables_ = std::make_unique<RunTables>(db_, run);
    }

    /// False when `event.seq` does not follow and no gap event explains why.
    bool take(const model::Event& event) {
        const std::optional<Gap> gap = gapOf(event);
        const bool follows = event.seq == state_.seq + 1 || (gap && gap->first == state_.seq + 1);
        batch_.fold(state_, event);
        ++events_;
        if (batch_.events.size() >= kBatch) finish();
        return follows;
    }
    void finish() {
        tables_->writeDerived(batch_, state_);
        batch_ = Batch{};
    }

    SQLite::Database& db() { return db_; }
    const model::RunState& state() const { return state_; }
    uint64_t events() const { return events_; }

  private:
    static constexpr size_t kBatch = 512;
    SQLite::Database db_;
    int64_t run_;
    std::unique_ptr<RunTables> tables_;
    model::RunState state_;
    Batch batch_;
    uint64_t events_ = 0;
};

/// Row by row; empty when equal, else what differs.
std::string difference(SQLite::Database& stored, SQLite::Database& rebuilt, int64_t run,
                       const char* table, const char* key) {
    const std::string sql = concat("SELECT * FROM ", table, " WHERE run = ? ORDER BY ", key);
    SQLite::Statement a(stored, sql);
    SQLite::Statement b(rebuilt, sql);
    a.bind(1, run);
    b.bind(1, run);
    for (uint64_t row = 1;; ++row) {
        const bool moreA = a.executeStep();
        const bool moreB = b.executeStep();
        if (!moreA && !moreB) return {};
        if (moreA != moreB)
            return concat("table ", table, " has ", moreA ? "more" : "fewer",
                          " rows than the events say (row ", row, ")");
        for (int c = 0; c < a.getColumnCount(); ++c)
            if (a.getColumn(c).getString() != b.getColumn(c).getString())
                return concat("table ", table, ", row ", row, ", column ", a.getColumnName(c),
                              ": \"", model::shortened(a.getColumn(c).getString(), 80),
                              "\", the events say \"",
                              model::shortened(b.getColumn(c).getString(), 80), "\"");
    }
}

/// Keyframes of this program's making, by seq.
std::map<uint64_t, std::string> keyframesOf(SQLite::Database& db, int64_t run) {
    std::map<uint64_t, std::string> out;
    SQLite::Statement query(db, "SELECT seq, state FROM keyframes WHERE run = ?");
    query.bind(1, run);
    while (query.executeStep()) {
        const SQLite::Column state = query.getColumn(1);
        out[static_cast<uint64_t>(query.getColumn(0).getInt64())] = std::string(
            static_cast<const char*>(state.getBlob()), static_cast<size_t>(state.getBytes()));
    }
    return out;
}

std::string keyframeProblem(const std::string& frame, const model::RunState& state) {
    const auto bytes = decompress(frame);
    if (!bytes.ok()) return concat("the keyframe at ", state.seq, " is damaged");
    const auto decoded = model::decodeKeyframe(*bytes);
    if (decoded.status().code() == absl::StatusCode::kFailedPrecondition) return {};
    if (!decoded.ok() || *bytes != model::encodeKeyframe(state))
        return concat("the keyframe at ", state.seq, " is not the fold of the events before it");
    return {};
}

}  // namespace

absl::Status SqliteRunReader::verify(int64_t runId) {
    return guarded(file_.string(), [&]() -> absl::Status {
        SQLite::Transaction oneMoment(*db_);
        if (!exists(runId)) return noRun(runId);
        return verifyRun(runId);
    });
}

absl::Status SqliteRunReader::verifyRun(int64_t runId) {
    const auto wrong = [&](const auto&... words) {
        return absl::DataLossError(concat(file_.string(), ": run ", runId, ": ", words...));
    };
    const std::string intact = db_->execAndGet("PRAGMA integrity_check").getString();
    if (intact != "ok") return wrong("SQLite says: ", intact);

    Rebuilt rebuilt(runId);
    const std::map<uint64_t, std::string> keyframes = keyframesOf(*db_, runId);
    std::string problem;
    const absl::Status read =
        forEachEvent(*db_, runId, 0, UINT64_MAX, [&](const model::Event& event) {
            const uint64_t before = rebuilt.state().seq;
            if (!rebuilt.take(event))
                problem = concat("event ", event.seq, " follows ", before,
                                 ", and no row tells what was lost");
            const auto keyframe = keyframes.find(event.seq);
            if (problem.empty() && keyframe != keyframes.end())
                problem = keyframeProblem(keyframe->second, rebuilt.state());
            return problem.empty();
        });
    if (!read.ok()) return wrong(std::string(read.message()));
    if (!problem.empty()) return wrong(problem);
    rebuilt.finish();

    constexpr std::array<std::pair<const char*, const char*>, 5> kTables = {{
        {"steps", "seq"},
        {"incidents", "incident"},
        {"faults", "fault"},
        {"checkpoints", "seq"},
        {"gaps", "first_seq"},
    }};
    for (const auto& [table, key] : kTables) {
        problem = difference(*db_, rebuilt.db(), runId, table, key);
        if (!problem.empty()) return wrong(problem);
    }
    SQLite::Statement row(*db_, "SELECT events, last_seq FROM runs WHERE id = ?");
    row.bind(1, runId);
    row.executeStep();
    const auto events = static_cast<uint64_t>(row.getColumn(0).getInt64());
    const auto lastSeq = static_cast<uint64_t>(row.getColumn(1).getInt64());
    if (events != rebuilt.events() || lastSeq != rebuilt.state().seq)
        return wrong("its row tells of ", events, " events up to ", lastSeq, ", there are ",
                     rebuilt.events(), " up to ", rebuilt.state().seq);
    return absl::OkStatus();
}

}  // namespace bulkhead::history
