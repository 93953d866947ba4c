// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <set>
#include <thread>

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
using model::LedgerFinding;

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

/// Rows beyond these of one table say nothing more.
constexpr size_t kMostRows = 20;

constexpr const char* kEventsCount =
    "the events count, and tables are made from them: restore the run file from a copy, or export "
    "its events";

/// Row by row, in the order of `key`, a column that is unique within the run.
void findDifferences(SQLite::Database& stored, SQLite::Database& rebuilt, int64_t run,
                     const char* table, const char* key, std::vector<LedgerFinding>& out) {
    const std::string sql =
        concat("SELECT ", key, ", * FROM ", table, " WHERE run = ? ORDER BY ", key);
    SQLite::Statement a(stored, sql);
    SQLite::Statement b(rebuilt, sql);
    a.bind(1, run);
    b.bind(1, run);
    const auto find = [&](SQLite::Statement& row, const std::string& what) {
        uint64_t step = 0;
        for (int c = 1; c < row.getColumnCount(); ++c)
            if (std::string_view(row.getColumnName(c)) == "step")
                step = static_cast<uint64_t>(row.getColumn(c).getInt64());
        out.push_back({step,
                       concat("table ", table, ", ", step > 0 ? concat("step ", step, ", ") : "",
                              "row ", row.getColumn(0).getString(), ": ", what),
                       kEventsCount});
    };
    bool moreA = a.executeStep();
    bool moreB = b.executeStep();
    for (size_t found = 0; (moreA || moreB) && found < kMostRows;) {
        const int64_t keyA = moreA ? a.getColumn(0).getInt64() : INT64_MAX;
        const int64_t keyB = moreB ? b.getColumn(0).getInt64() : INT64_MAX;
        if (keyA < keyB) {
            find(a, "it stands there, and no event tells of it");
        } else if (keyB < keyA) {
            find(b, "it is missing, and an event tells of it");
        } else {
            for (int c = 1; c < a.getColumnCount(); ++c) {
                const std::string inTable = a.getColumn(c).getString();
                const std::string told = b.getColumn(c).getString();
                if (inTable == told) continue;
                find(a,
                     concat("column ", a.getColumnName(c), " is \"", model::shortened(inTable, 80),
                            "\", the events say \"", model::shortened(told, 80), "\""));
                break;
            }
        }
        found += keyA != keyB ? 1 : 0;
        if (keyA <= keyB) moreA = a.executeStep();
        if (keyB <= keyA) moreB = b.executeStep();
    }
}

/// The events behind which a keyframe stands, by seq.
std::set<uint64_t> keyframesOf(SQLite::Database& db, int64_t run) {
    std::set<uint64_t> out;
    SQLite::Statement query(db, "SELECT seq FROM keyframes WHERE run = ?");
    query.bind(1, run);
    while (query.executeStep()) out.insert(static_cast<uint64_t>(query.getColumn(0).getInt64()));
    return out;
}

/// All of them together may be as large as the events: each is read in its turn.
std::string keyframeProblem(SQLite::Database& db, int64_t run, const model::RunState& state) {
    SQLite::Statement query(db, "SELECT state FROM keyframes WHERE run = ? AND seq = ?");
    query.bind(1, run);
    query.bind(2, asKey(state.seq));
    query.executeStep();
    const SQLite::Column frame = query.getColumn(0);
    std::string bytes;
    const absl::Status read = decompress(
        {static_cast<const char*>(frame.getBlob()), static_cast<size_t>(frame.getBytes())}, bytes);
    if (!read.ok()) return concat("the keyframe at ", state.seq, " is damaged");
    const auto decoded = model::decodeKeyframe(bytes);
    if (decoded.status().code() == absl::StatusCode::kFailedPrecondition) return {};
    if (!decoded.ok() || bytes != model::encodeKeyframe(state))
        return concat("the keyframe at ", state.seq, " is not the fold of the events before it");
    return {};
}

}  // namespace

absl::Status SqliteRunReader::verify(int64_t runId) {
    return guarded(file_.string(), [&]() -> absl::Status {
        SQLite::Transaction oneMoment(*db_);
        if (!exists(runId)) return noRun(runId);
        const std::vector<LedgerFinding> found = examine(runId, [](const model::Event&) {});
        if (found.empty()) return absl::OkStatus();
        return absl::DataLossError(
            concat(file_.string(), ": run ", runId, ": ", found.front().what));
    });
}

absl::StatusOr<model::LedgerReport> SqliteRunReader::audit(int64_t runId, const LogSource& log) {
    return guardedValue<model::LedgerReport>(
        file_.string(), [&]() -> absl::StatusOr<model::LedgerReport> {
            model::LedgerAudit ledger;
            bool growing = false;
            uint64_t lastSeq = 0;
            {
                SQLite::Transaction oneMoment(*db_);
                const absl::StatusOr<StoredRun> info = run(runId);
                if (!info.ok()) return info.status();
                growing = info->phase != "interrupted" &&
                          info->phase != enumName(model::JobPhase::kFinished) &&
                          info->phase != enumName(model::JobPhase::kFailed);
                lastSeq = info->lastSeq;
                for (LedgerFinding& found :
                     examine(runId, [&](const model::Event& event) { ledger.add(event); }))
                    ledger.find(std::move(found));
            }
            const auto steps = log();
            if (steps.ok()) {
                const bool behind = !steps->empty() && steps->back().step != ledger.lastStep();
                return ledger.report(*steps, growing && (!behind || growsBeyond(runId, lastSeq)));
            }
            if (absl::IsFailedPrecondition(steps.status())) return steps.status();
            if (!absl::IsNotFound(steps.status()))
                ledger.find({ledger.lastStep(), std::string(steps.status().message()),
                             "restore the commit log from a copy; without it a cut off end of the "
                             "run file is not noticed"});
            return ledger.report(std::nullopt);
        });
}

/// True as soon as an event of the run behind `seq` is recorded; false when none is for some time.
/// A job tells of its nodes and ranks every second, whatever it does, and of its end.
bool SqliteRunReader::growsBeyond(int64_t runId, uint64_t seq) {
    constexpr auto kPatience = std::chrono::seconds(5);
    constexpr auto kLook = std::chrono::milliseconds(50);
    const auto last = [&] {
        SQLite::Statement query(*db_, "SELECT MAX(seq) FROM events WHERE run = ?");
        query.bind(1, runId);
        return query.executeStep() ? static_cast<uint64_t>(query.getColumn(0).getInt64()) : 0;
    };
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (last() <= seq) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(kLook);
    }
    return true;
}

/// Everything that is wrong with what is stored, and `take` for every event that can be read.
std::vector<LedgerFinding> SqliteRunReader::examine(
    int64_t runId, const std::function<void(const model::Event&)>& take) {
    std::vector<LedgerFinding> out;
    constexpr const char* kRestore = "restore the run file from a copy";
    const std::string intact = db_->execAndGet("PRAGMA integrity_check").getString();
    if (intact != "ok") out.push_back({0, concat("SQLite says: ", intact), kRestore});

    Rebuilt rebuilt(runId);
    const std::set<uint64_t> keyframes = keyframesOf(*db_, runId);
    uint64_t step = 0;
    const auto wrong = [&](const auto&... words) {
        out.push_back({step, concat(words..., step > 0 ? concat(" (behind step ", step, ")") : ""),
                       kRestore});
    };
    SQLite::Statement rows(*db_,
                           "SELECT seq, time_ns, severity, body, type, step FROM events "
                           "WHERE run = ? ORDER BY seq");
    rows.bind(1, runId);
    std::string json;
    while (rows.executeStep()) {
        const absl::StatusOr<model::Event> event = eventOf(rows, json);
        if (!event.ok()) {
            wrong(std::string(event.status().message()));
            continue;
        }
        const uint64_t before = rebuilt.state().seq;
        if (!rebuilt.take(*event)) {
            const uint64_t first = before + 1;
            if (event->seq == first + 1)
                wrong("event ", first, " is missing, and no row tells what was lost");
            else
                wrong("events ", first, " to ", event->seq - 1,
                      " are missing, and no row tells what was lost");
        }
        const SQLite::Column stepColumn = rows.getColumn(5);
        const int64_t columnStep = stepColumn.isNull() ? -1 : stepColumn.getInt64();
        if (rows.getColumn(4).getString() != model::typeName(event->body) ||
            columnStep != stepOf(event->body).value_or(-1))
            wrong("event ", event->seq, " is another than its columns type and step say");
        if (out.empty() && keyframes.contains(event->seq))
            if (const std::string problem = keyframeProblem(*db_, runId, rebuilt.state());
                !problem.empty())
                wrong(problem);
        if (const auto* commit = std::get_if<model::StepCommitted>(&event->body))
            step = commit->record.step;
        take(*event);
    }
    rebuilt.finish();

    constexpr std::array<std::pair<const char*, const char*>, 6> kTables = {{
        {"steps", "seq"},
        {"parity", "seq * 1024 + part"},
        {"incidents", "incident"},
        {"faults", "fault"},
        {"checkpoints", "seq"},
        {"gaps", "first_seq"},
    }};
    for (const auto& [table, key] : kTables)
        findDifferences(*db_, rebuilt.db(), runId, table, key, out);
    SQLite::Statement row(*db_, "SELECT events, last_seq FROM runs WHERE id = ?");
    row.bind(1, runId);
    row.executeStep();
    const auto events = static_cast<uint64_t>(row.getColumn(0).getInt64());
    const auto lastSeq = static_cast<uint64_t>(row.getColumn(1).getInt64());
    if (events != rebuilt.events() || lastSeq != rebuilt.state().seq)
        wrong("its row tells of ", events, " events up to ", lastSeq, ", there are ",
              rebuilt.events(), " up to ", rebuilt.state().seq);
    return out;
}

}  // namespace bulkhead::history
