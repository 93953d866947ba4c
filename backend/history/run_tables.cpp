// SPDX-License-Identifier: Apache-2.0
#include "backend/history/run_tables.h"

#include <algorithm>
#include <bit>

#include "backend/history/row_io.h"
#include "backend/model/command_text.h"
#include "backend/model/json.h"
#include "backend/model/names.h"
#include "backend/model/parse_number.h"

namespace bulkhead::history {
namespace {

using model::concat;

constexpr std::string_view kGapInvariant = "history";

std::string insertInto(std::string_view table, std::string_view columns, std::string_view marks) {
    return concat("INSERT OR REPLACE INTO ", table, " (run, ", columns, ") VALUES (?, ", marks,
                  ")");
}

std::string hex(uint64_t value) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string out(16, '0');
    for (size_t i = 16; i-- > 0; value >>= 4) out[i] = kDigits[value & 15];
    return out;
}

LedgerRow ledgerRow(const model::Event& event, const model::StepCommitted& e) {
    const CommitRecord& record = e.record;
    LedgerRow row;
    row.lineage = record.lineage;
    row.step = record.step;
    row.seq = event.seq;
    row.timeNs = event.timeNs;
    row.epoch = record.epoch;
    row.attempt = record.attempt;
    row.contributors = static_cast<uint32_t>(record.contributors.size());
    std::vector<std::string> words;
    for (const Contribution& c : record.contributors) words.push_back(std::to_string(c.replica));
    row.members = model::joined(words, ",");
    row.samples = record.samples;
    row.tokens = record.tokens;
    row.loss = e.loss;
    row.gradNorm = e.gradNorm;
    row.learningRate = e.learningRate;
    row.lrFactor = static_cast<double>(std::bit_cast<float>(record.lrFactorBits));
    row.stepMs = e.stepMs;
    row.commitMs = e.commitMs;
    row.layout = record.layout;
    for (const uint64_t n : e.traffic.copies) row.copies += n;
    for (const uint64_t n : e.traffic.remote) row.remoteCopies += n;
    row.predictedRemote = e.predictedRemote;
    row.allToAllBytes = e.traffic.bytes;
    for (const model::ReplicaLedger& line : e.replicas) {
        row.computeMs = std::max(row.computeMs, line.computeMs);
        row.exchangeMs = std::max(row.exchangeMs, line.exchangeMs);
        row.exposedMs = std::max(row.exposedMs, line.exposedMs);
        row.voteMs = std::max(row.voteMs, line.voteMs);
        row.bytes += line.bytes;
        if (line.waitedOnMs <= row.waitedOnMs) continue;
        row.waitedOnMs = line.waitedOnMs;
        row.waitedOn = line.waitedOn;
    }
    row.tokensPerSecond = e.tokensPerSecond;
    row.effectiveTime = e.effectiveTime;
    row.skip = record.skip;
    words.clear();
    for (const model::ShardLedger& line : e.shards)
        if (line.hash != 0) words.push_back(hex(line.hash));
    row.hashes = model::joined(words, ",");
    row.link = e.link;
    return row;
}

/// The comparison of a committed step, in the form of a dispute.
ParityDispute comparedBy(const model::StepCommitted& e) {
    const CommitRecord& record = e.record;
    return {
        record.lineage, record.step - 1, record.epoch, record.attempt, record.layout, e.parity, {}};
}

/// Statements are reset before use, so that one that failed in a rolled back batch is fresh.
RowBinder bound(SQLite::Statement& statement, int64_t run) {
    statement.tryReset();
    statement.clearBindings();
    statement.bind(1, run);
    return RowBinder(statement, 2);
}

}  // namespace

model::Event gapEvent(const Gap& gap, int64_t timeNs) {
    model::Event event;
    event.seq = gap.last;
    event.timeNs = timeNs;
    event.severity = model::Severity::kError;
    event.body = model::InvariantBroken{
        std::string(kGapInvariant),
        concat("events ", gap.first, " to ", gap.last, " are missing: ", gap.why)};
    return event;
}

std::optional<Gap> gapOf(const model::Event& event) {
    const auto* broken = std::get_if<model::InvariantBroken>(&event.body);
    if (!broken || broken->invariant != kGapInvariant) return std::nullopt;
    std::string_view rest = broken->detail;
    const auto take = [&](std::string_view before, std::string_view after) {
        if (rest.substr(0, before.size()) != before) return std::optional<uint64_t>();
        rest.remove_prefix(before.size());
        const size_t end = rest.find(after);
        const auto number = model::parseNumber<uint64_t>(rest.substr(0, end));
        if (number) rest.remove_prefix(end);
        return number;
    };
    const std::optional<uint64_t> first = take("events ", " to ");
    const std::optional<uint64_t> last = first ? take(" to ", " are missing: ") : std::nullopt;
    if (!last || *last != event.seq || *first > *last) return std::nullopt;
    return Gap{*first, *last, std::string(rest.substr(std::string_view(" are missing: ").size()))};
}

void Batch::fold(model::RunState& state, model::Event event) {
    const uint64_t rollbacksBefore = state.counters.rollbacks;
    model::apply(state, event);
    if (state.counters.rollbacks != rollbacksBefore) rollbacks.insert(event.seq);
    std::visit(
        [&](const auto& e) {
            if constexpr (requires { e.incident; }) incidents.insert(e.incident);
            if constexpr (requires { e.fault; }) faults.insert(e.fault);
            if constexpr (std::same_as<std::remove_cvref_t<decltype(e)>, model::EvidenceSeen>) {
                const model::ReplicaView* replica = model::findReplica(state, e.replica);
                if (replica) incidents.insert(replica->openIncident);
            }
        },
        event.body);
    events.push_back(std::move(event));
}

void Batch::makeRows() {
    for (const model::Event& event : events) {
        rows.push_back(rowOf(event));
        bytes += rows.back().bytes();
    }
}

RunTables::RunTables(SQLite::Database& db, int64_t run)
    : db_(db),
      run_(run),
      others_(db, "SELECT count(*) FROM events WHERE run = ? AND seq BETWEEN ? AND ?"),
      event_(db, insertInto("events", "seq, time_ns, type, step, replica, severity, body",
                            "?, ?, ?, ?, ?, ?, ?")),
      step_(db, insertInto("steps", columnsOf<LedgerRow>().names, columnsOf<LedgerRow>().marks)),
      parity_(db, insertInto("parity",
                             "seq, part, step, lineage, epoch, attempt, layout, agree, replicas, "
                             "incarnations, hashes",
                             "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?")),
      supersede_(db, "UPDATE steps SET superseded = 1 WHERE run = ? AND step > ? AND seq < ?"),
      suspect_(db,
               "UPDATE steps SET suspect = 1 WHERE run = ? AND step > ? AND step <= ? AND seq < ? "
               "AND superseded = 0"),
      incident_(db, insertInto("incidents",
                               "incident, opened_ns, closed_ns, replica, step, cause, fault, "
                               "title, survivor_stall_ms, rejoin_ms, replica_seconds, "
                               "samples_redone, outcome, body",
                               "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?")),
      fault_(db,
             insertInto("faults", "fault, kind, spec, step, injected_ns, ended_ns, outcome, body",
                        "?, ?, ?, ?, ?, ?, ?, ?")),
      checkpoint_(
          db, insertInto("checkpoints", "seq, time_ns, step, replica, path, bytes, ms, ok, error",
                         "?, ?, ?, ?, ?, ?, ?, ?, ?")),
      gap_(db, insertInto("gaps", "first_seq, last_seq, why", "?, ?, ?")),
      keyframe_(db, insertInto("keyframes", "seq, state", "?, ?")),
      runRow_(db,
              "UPDATE runs SET started_ns = ?2, ended_ns = ?3, events = events + ?4, "
              "last_seq = ?5, last_step = ?6, last_loss = ?7, effective_time = ?8, "
              "incidents = ?9, faults = ?10, replicas = ?11, shards = ?12, workload = ?13, "
              "host = ?14, phase = ?15, resumed_from = ?16, missing = missing + ?17 "
              "WHERE id = ?1") {}

void RunTables::write(const Batch& batch, const model::RunState& state) {
    const int64_t replaced = makeRoom(batch);
    for (size_t i = 0; i < batch.events.size(); ++i) writeEvent(batch.events[i], batch.rows[i]);
    writeDerived(batch, state);
    if (!batch.keyframe.empty()) {
        bound(keyframe_, run_).put(state.seq);
        keyframe_.bind(3, batch.keyframe.data(), static_cast<int>(batch.keyframe.size()));
        keyframe_.exec();
    }
    writeRun(batch, state, replaced);
}

void RunTables::writeDerived(const Batch& batch, const model::RunState& state) {
    for (const model::Event& event : batch.events) {
        if (const auto* step = std::get_if<model::StepCommitted>(&event.body)) {
            writeStep(event, *step);
            writeParity(event, comparedBy(*step));
        } else if (const auto* disputed = std::get_if<model::ParityDisputed>(&event.body)) {
            writeParity(event, disputed->dispute);
        } else if (const auto* lineage = std::get_if<model::LineageOpened>(&event.body)) {
            if (!batch.rollbacks.contains(event.seq)) continue;
            bound(supersede_, run_).put(lineage->fromStep).put(event.seq);
            supersede_.exec();
        } else if (const auto* span = std::get_if<model::StepsSuspect>(&event.body)) {
            bound(suspect_, run_).put(span->first).put(span->last).put(event.seq);
            suspect_.exec();
        } else if (const auto* checkpoint = std::get_if<model::CheckpointWritten>(&event.body)) {
            writeCheckpoint(event, *checkpoint);
        } else if (const std::optional<Gap> gap = gapOf(event)) {
            writeGap(*gap);
        }
    }
    for (const uint64_t id : batch.incidents)
        if (const auto* incident = model::findIncident(state, id)) writeIncident(*incident);
    for (const uint64_t id : batch.faults)
        if (const auto* fault = model::findFault(state, id)) writeFault(*fault);
}

int64_t RunTables::makeRoom(const Batch& batch) {
    if (batch.events.empty()) return 0;
    const uint64_t first = batch.events.front().seq;
    const uint64_t last = batch.events.back().seq;
    bound(others_, run_).put(first).put(last);
    others_.executeStep();
    const int64_t count = others_.getColumn(0).getInt64();
    others_.reset();
    if (count == 0) return 0;
    for (const char* table : {"events", "steps", "parity", "checkpoints", "keyframes"}) {
        SQLite::Statement remove(
            db_, concat("DELETE FROM ", table, " WHERE run = ? AND seq BETWEEN ? AND ?"));
        bound(remove, run_).put(first).put(last);
        remove.exec();
    }
    return count;
}

void RunTables::writeEvent(const model::Event& event, const EventRow& row) {
    bound(event_, run_)
        .put(event.seq)
        .put(event.timeNs)
        .put(model::typeName(event.body))
        .put(row.step.value_or(0))
        .put(row.replica.value_or(0))
        .put(static_cast<int>(event.severity));
    if (!row.step) event_.bind(5);
    if (!row.replica) event_.bind(6);
    if (row.frame.empty())
        event_.bindNoCopy(8, row.json);
    else
        event_.bindNoCopy(8, row.frame.data(), static_cast<int>(row.frame.size()));
    event_.exec();
}

void RunTables::writeStep(const model::Event& event, const model::StepCommitted& step) {
    const LedgerRow row = ledgerRow(event, step);
    RowBinder binder = bound(step_, run_);
    LedgerRow::fields(row, binder);
    step_.exec();
}

void RunTables::writeParity(const model::Event& event, const ParityDispute& told) {
    for (size_t part = 0; part < told.groups.size(); ++part) {
        const ParityGroup& group = told.groups[part];
        std::vector<std::string> words;
        for (const uint64_t hash : group.hashes) words.push_back(hex(hash));
        bound(parity_, run_)
            .put(event.seq)
            .put(part)
            .put(told.step)
            .put(told.lineage)
            .put(told.epoch)
            .put(told.attempt)
            .put(told.layout)
            .put(told.groups.size() == 1)
            .put(model::toJsonText(group.replicas))
            .put(model::toJsonText(group.incarnations))
            .put(model::joined(words, ","));
        parity_.exec();
    }
}

void RunTables::writeCheckpoint(const model::Event& event, const model::CheckpointWritten& c) {
    bound(checkpoint_, run_)
        .put(event.seq)
        .put(event.timeNs)
        .put(c.step)
        .put(c.replica)
        .put(c.path)
        .put(c.bytes)
        .put(c.ms)
        .put(c.ok)
        .put(c.error);
    checkpoint_.exec();
}

void RunTables::writeIncident(const model::IncidentView& i) {
    bound(incident_, run_)
        .put(i.incident)
        .put(i.openedNs)
        .put(i.closedNs)
        .put(i.replica)
        .put(i.step)
        .put(i.cause)
        .put(i.fault)
        .put(i.title)
        .put(i.survivorStallMs)
        .put(i.rejoinMs)
        .put(i.replicaSeconds)
        .put(i.samplesRedone)
        .put(i.outcome)
        .put(model::toJsonText(i));
    incident_.exec();
}

void RunTables::writeFault(const model::FaultView& f) {
    bound(fault_, run_)
        .put(f.fault)
        .put(f.spec.kind)
        .put(model::formatFault(f.spec))
        .put(f.step)
        .put(f.injectedNs)
        .put(f.endedNs)
        .put(f.outcome)
        .put(model::toJsonText(f));
    fault_.exec();
}

void RunTables::writeGap(const Gap& gap) {
    bound(gap_, run_).put(gap.first).put(gap.last).put(gap.why);
    gap_.exec();
}

void RunTables::writeRun(const Batch& batch, const model::RunState& s, int64_t replaced) {
    uint64_t missing = 0;
    for (const model::Event& event : batch.events)
        if (const std::optional<Gap> gap = gapOf(event)) missing += gap->last - gap->first + 1;
    bound(runRow_, run_)
        .put(s.startedNs)
        .put(s.lastEventNs)
        .put(static_cast<int64_t>(batch.events.size()) - replaced)
        .put(s.seq)
        .put(s.lastCommit ? s.lastCommit->record.step : 0)
        .put(s.lastCommit ? s.lastCommit->loss : 0.0)
        .put(s.effectiveTime)
        .put(s.counters.incidents)
        .put(s.counters.faults)
        .put(s.spec.replicas)
        .put(s.spec.shards)
        .put(s.spec.workload)
        .put(s.host)
        .put(s.phase)
        .put(s.resumedFrom)
        .put(missing);
    runRow_.exec();
}

}  // namespace bulkhead::history
