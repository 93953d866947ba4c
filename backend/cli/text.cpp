// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/text.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <ctime>

#include "backend/model/command_text.h"
#include "backend/model/json.h"

namespace bulkhead::cli {
namespace {

template <class... Args>
std::string printed(const char* format, Args... args) {
    char text[256];
    std::snprintf(text, sizeof text, format, args...);
    return text;
}

std::string formatTime(int64_t unixNs, const char* format) {
    const std::time_t seconds = static_cast<std::time_t>(unixNs / 1'000'000'000);
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    char text[64];
    std::strftime(text, sizeof text, format, &parts);
    return text;
}

uint64_t lastStep(const model::RunState& state) {
    return state.lastCommit ? state.lastCommit->record.step : 0;
}

/// Scalars of an event's body as key=value; long ones and structures are left to --json.
std::string shortFields(const model::Json& body) {
    std::string out;
    for (const auto& [key, value] : body.items()) {
        if (key == "type" || value.is_structured() || value.is_null()) continue;
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        if (text.empty()) continue;
        out += " " + key + "=" + (text.find(' ') == std::string::npos ? text : '"' + text + '"');
    }
    return out;
}

}  // namespace

std::string table(const std::vector<std::vector<std::string>>& rows) {
    std::vector<size_t> widths;
    for (const auto& row : rows) {
        widths.resize(std::max(widths.size(), row.size()));
        for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string out;
    for (const auto& row : rows) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i) {
            line += row[i];
            if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
        }
        out += line + "\n";
    }
    return out;
}

std::string clockTime(int64_t unixNs) {
    return formatTime(unixNs, "%H:%M:%S") +
           printed(".%03d", static_cast<int>(unixNs / 1'000'000 % 1000));
}

std::string dateTime(int64_t unixNs) {
    return unixNs == 0 ? "-" : formatTime(unixNs, "%Y-%m-%d %H:%M:%S");
}

std::string eventLine(const model::Event& event) {
    const std::string type(model::typeName(event.body));
    std::string text = clockTime(event.timeNs) + printed("  %6" PRIu64 "  ", event.seq);
    text += printed("%-7s  ", std::string(enumName(event.severity)).c_str());
    text += printed("%-18s", type.c_str());
    if (const auto* fault = std::get_if<model::FaultInjected>(&event.body))
        return text + " #" + std::to_string(fault->fault) + " " + model::describe(fault->spec);
    if (const auto* acted = std::get_if<model::OperatorActed>(&event.body))
        return text + " " + model::describe(acted->action) + ": " + acted->outcome;
    if (const auto* commit = std::get_if<model::StepCommitted>(&event.body))
        return text + printed(" step=%" PRIu64 " loss=%.4f contributors=%zu tokens_per_second=%.0f",
                              commit->record.step, commit->loss, commit->record.contributors.size(),
                              commit->tokensPerSecond);
    return text +
           shortFields(std::visit([](const auto& b) { return model::toJson(b); }, event.body));
}

bool isNotable(const model::Event& event) {
    const std::string_view type = model::typeName(event.body);
    for (const std::string_view one :
         {"fault_injected", "fault_ended", "incident_opened", "incident_closed", "step_redone",
          "invariant_broken", "operator_acted", "run_finished", "lineage_opened", "steps_suspect",
          "range_quarantined", "policies_changed", "layout_changed"})
        if (type == one) return true;
    return event.severity >= model::Severity::kWarning;
}

std::string summaryLine(const model::RunState& state) {
    std::string out = printed("step %" PRIu64, lastStep(state));
    if (state.spec.steps > 0) out += printed("/%" PRIu64, state.spec.steps);
    if (state.lastCommit)
        out += printed("  loss %.3f  %.0f tok/s  ett %.1f%%", state.lastCommit->loss,
                       state.lastCommit->tokensPerSecond, state.effectiveTime * 100);
    out += printed("  %u/%u replicas  ", model::contributors(state), state.spec.replicas);
    out += enumName(state.phase);
    const bool waits = state.phase != model::JobPhase::kTraining;
    if (waits && !state.explanation.empty()) out += ": " + state.explanation;
    return out;
}

std::string summaryJson(const model::RunState& state) {
    model::Json json;
    json["type"] = "summary";
    json["step"] = lastStep(state);
    json["steps"] = state.spec.steps;
    json["contributors"] = model::contributors(state);
    json["replicas"] = state.spec.replicas;
    json["phase"] = enumName(state.phase);
    json["explanation"] = state.explanation;
    json["effective_time"] = state.effectiveTime;
    if (state.lastCommit) {
        json["loss"] = state.lastCommit->loss;
        json["tokens_per_second"] = state.lastCommit->tokensPerSecond;
    }
    json["incidents"] = state.incidents.total();
    json["faults"] = state.faults.total();
    return model::dumpJson(json);
}

std::string incidentsText(const model::RunState& state) {
    if (state.incidents.empty()) return "";
    std::vector<std::vector<std::string>> rows{
        {"INCIDENT", "FAULT", "STEP", "STALL", "REJOIN", "WHAT", "OUTCOME"}};
    for (const model::IncidentView& i : state.incidents)
        rows.push_back({std::to_string(i.incident), i.fault > 0 ? std::to_string(i.fault) : "-",
                        std::to_string(i.step), model::humanDuration(i.survivorStallMs),
                        i.rejoinMs > 0 ? model::humanDuration(i.rejoinMs) : "-", i.title,
                        i.closedNs > 0 ? i.outcome : "open"});
    return table(rows);
}

std::string stateText(const model::RunState& state) {
    std::string out = state.spec.name + "  " + summaryLine(state) + "\n";
    out += "started " + dateTime(state.startedNs) + " on " + state.host + ", version " +
           state.version + "\n";
    if (!state.replicas.empty()) {
        std::vector<std::vector<std::string>> rows{
            {"REPLICA", "STATE", "STEP", "NODE", "INCARNATION", "WHY"}};
        for (const model::ReplicaView& r : state.replicas)
            rows.push_back({std::to_string(r.replica), std::string(enumName(r.state)),
                            std::to_string(r.step), r.node, std::to_string(r.incarnation), r.why});
        out += "\n" + table(rows);
    }
    if (!state.incidents.empty()) out += "\n" + incidentsText(state);
    return out;
}

}  // namespace bulkhead::cli
