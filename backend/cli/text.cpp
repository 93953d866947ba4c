// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/text.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <iterator>

#include "absl/strings/str_join.h"
#include "backend/cli/cli.h"
#include "backend/cli/gpu_table.h"
#include "backend/cli/live_text.h"
#include "backend/model/command_text.h"
#include "backend/model/event_json.h"
#include "backend/model/gpu_text.h"
#include "backend/model/names.h"
#include "backend/model/rank_name.h"
#include "backend/model/units.h"

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

bool takeSuffix(std::string& key, std::string_view suffix) {
    if (!key.ends_with(suffix)) return false;
    key.resize(key.size() - suffix.size());
    return true;
}

/// "212ms": a figure and its unit as one word of a line of fields.
std::string oneWord(std::string figure) {
    std::erase(figure, ' ');
    return figure;
}

/// "r2s1", "3[0,16)": the structures short enough for a line; else empty.
std::string shortStructure(const model::Json& value) {
    if (value.contains("replica") && value.contains("shard"))
        return model::rankName({value["replica"].get<int32_t>(), value["shard"].get<int32_t>()});
    if (value.contains("begin") && value.contains("end"))
        return value.value("domain", model::Json(0)).dump() + "[" + value["begin"].dump() + "," +
               value["end"].dump() + ")";
    return "";
}

/// A number in the unit its field's name ends in, which then leaves the name.
std::string shortNumber(std::string& key, const model::Json& value) {
    const double number = value.get<double>();
    if (key == "ms" || key.ends_with("_ms")) {
        key = key == "ms" ? "took" : key.substr(0, key.size() - 3);
        return number > 0 ? oneWord(model::humanDuration(number)) : "";
    }
    if (key == "bytes" || key.find("bytes_") == 0 || key.ends_with("_bytes"))
        return number == 0 ? "" : oneWord(model::bytesText(number));
    if (takeSuffix(key, "_ns")) return number == 0 ? "" : clockTime(value.get<int64_t>());
    if (takeSuffix(key, "_per_second")) return printed("%.0f/s", number);
    if (takeSuffix(key, "_percent")) return printed("%.0f %%", number);
    if (key == "hash") return printed("%016" PRIx64, value.get<uint64_t>());
    if (value.is_number_float()) return printed("%.4g", number);
    // -1 names nobody, fault 0 no fault.
    const bool nobody = value.is_number_integer() && !value.is_number_unsigned() && number < 0;
    return nobody || (key == "fault" && number == 0) ? "" : value.dump();
}

/// The fields of an event's body as key=value, for people: what is long is left to --json, and so
/// is what says nothing.
std::string shortFields(const model::Json& body) {
    std::string out;
    for (const auto& [name, value] : body.items()) {
        std::string key = name;
        if (key == "type" || key == "request_id" || value.is_null()) continue;
        const std::string text = value.is_structured() ? shortStructure(value)
                                 : value.is_string()   ? value.get<std::string>()
                                 : value.is_number()   ? shortNumber(key, value)
                                                       : value.dump();
        if (text.empty()) continue;
        out += " " + key + "=" + (text.find(' ') == std::string::npos ? text : '"' + text + '"');
    }
    return out;
}

/// The last quorum's contributors may have left since.
uint32_t replicasThatTrain(const model::RunState& state) {
    if (state.replicas.empty()) return model::contributors(state);
    return static_cast<uint32_t>(std::count_if(
        state.replicas.begin(), state.replicas.end(),
        [](const auto& replica) { return replica.state == model::ReplicaState::kTraining; }));
}

}  // namespace

std::string table(std::vector<std::vector<std::string>> rows) {
    for (auto& row : rows)
        for (std::string& cell : row) cell = model::printable(cell);
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

/// "  accuracy 0.913" for each, by what stands between name and value.
std::string scalarsText(const model::StepCommitted& commit, const char* before,
                        const char* between) {
    std::string text;
    for (const Scalar& s : commit.scalars)
        text += before + s.name + between + printed("%.4g", s.value);
    return text;
}

namespace {

std::string lineOf(const model::Event& event) {
    const std::string type(model::typeName(event.body));
    std::string text = clockTime(event.timeNs) + printed("  %6" PRIu64 "  ", event.seq);
    text += printed("%-7s  ", std::string(enumName(event.severity)).c_str());
    text += printed("%-18s", type.c_str());
    if (const auto* fault = std::get_if<model::FaultInjected>(&event.body))
        return text + " #" + std::to_string(fault->fault) + " " + model::describe(fault->spec);
    if (const auto* acted = std::get_if<model::OperatorActed>(&event.body))
        return text + " " + model::describe(acted->action) + ": " + acted->outcome;
    if (const auto* commit = std::get_if<model::StepCommitted>(&event.body))
        return text +
               printed(" step=%" PRIu64 " loss=%.4f contributors=%zu tokens_per_second=%.0f",
                       commit->record.step, commit->loss, commit->record.contributors.size(),
                       commit->tokensPerSecond) +
               scalarsText(*commit, " ", "=");
    if (const auto* disputed = std::get_if<model::ParityDisputed>(&event.body))
        return text + " " + model::disputeText(disputed->dispute);
    if (const auto* pace = std::get_if<model::ParityPaced>(&event.body))
        return text + " " + model::paceText(*pace);
    if (const auto* trouble = std::get_if<model::GpuTroubled>(&event.body))
        return text + " " + model::gpuName(*trouble) + ": " + model::troubleText(*trouble) + "; " +
               model::ranksText(*trouble);
    model::Json fields = model::toJson(event.body);
    fields.erase("type");
    return text + shortFields(fields);
}

}  // namespace

std::string eventLine(const model::Event& event) {
    return model::printable(lineOf(event));
}

std::string findingsText(const model::LedgerReport& report) {
    std::string out;
    for (const model::LedgerFinding& finding : report.findings)
        out += model::printable(finding.what + "; " + finding.remedy) + "\n";
    return out;
}

bool isNotable(const model::Event& event) {
    const std::string_view type = model::typeName(event.body);
    for (const std::string_view one :
         {"fault_injected", "fault_ended", "incident_opened", "incident_closed", "step_redone",
          "invariant_broken", "operator_acted", "lineage_opened", "steps_suspect",
          "range_quarantined", "policies_changed", "layout_changed", "plan_proposed",
          "campaign_started", "campaign_skipped", "campaign_ended", "gpu_troubled", "parity_paced"})
        if (type == one) return true;
    // The end and its reason are told once, at the end.
    return event.severity >= model::Severity::kWarning && type != "run_finished" &&
           type != "job_phase_changed";
}

std::string summaryLine(const model::RunState& state) {
    std::string out = printed("step %" PRIu64, lastStep(state));
    if (state.spec.steps > 0) out += printed("/%" PRIu64, state.spec.steps);
    if (state.lastCommit)
        out += printed("  loss %.3f  %.0f tok/s  ett %.1f %%", state.lastCommit->loss,
                       state.lastCommit->tokensPerSecond, state.effectiveTime * 100) +
               scalarsText(*state.lastCommit, "  ", " ");
    out += printed("  %u/%u replicas  ", replicasThatTrain(state), state.spec.replicas);
    out += enumName(state.phase);
    // The reason of the failure is printed as an error of its own.
    const bool waits =
        state.phase != model::JobPhase::kTraining && state.phase != model::JobPhase::kFailed;
    if (waits && !state.explanation.empty()) out += ": " + state.explanation;
    return model::printable(out);
}

std::string summaryJson(const model::RunState& state) {
    model::Json json;
    json["type"] = "summary";
    json["step"] = lastStep(state);
    json["steps"] = state.spec.steps;
    json["contributors"] = replicasThatTrain(state);
    json["replicas"] = state.spec.replicas;
    json["phase"] = enumName(state.phase);
    json["explanation"] = state.explanation;
    json["effective_time"] = state.effectiveTime;
    if (state.lastCommit) {
        json["loss"] = state.lastCommit->loss;
        json["tokens_per_second"] = state.lastCommit->tokensPerSecond;
        for (const Scalar& s : state.lastCommit->scalars) json["scalars"][s.name] = s.value;
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
    std::string out = model::printable(state.spec.name) + "  " + summaryLine(state) + "\n";
    out += model::printable("started " + dateTime(state.startedNs) + " on " + state.host +
                            ", version " + state.version) +
           "\n";
    if (!state.replicas.empty()) {
        std::vector<std::vector<std::string>> rows{
            {"REPLICA", "STATE", "STEP", "NODE", "INCARNATION", "WHY"}};
        for (const model::ReplicaView& r : state.replicas)
            rows.push_back({std::to_string(r.replica), std::string(enumName(r.state)),
                            std::to_string(r.step), absl::StrJoin(model::nodesOf(state, r), ", "),
                            std::to_string(r.incarnation), r.why});
        out += "\n" + table(rows);
    }
    if (state.lastCommit && !state.steps.empty() && state.steps.back().copies > 0)
        out += printed("\nexperts: layout %" PRIu64
                       ", %.1f %% of copies leave their shard, "
                       "%.3f MB all-to-all in the last step\n",
                       state.layout,
                       static_cast<double>(state.steps.back().remoteCopies) * 100 /
                           static_cast<double>(state.steps.back().copies),
                       static_cast<double>(state.steps.back().allToAllBytes) / 1e6);
    if (!state.nodes.empty()) out += "\n" + gpusText(state);
    if (!state.layouts.empty()) out += "\n" + layoutsText(state);
    if (!state.incidents.empty()) out += "\n" + incidentsText(state);
    if (state.finished && !state.finished->ok)
        out += "\nfailed: " + model::printable(state.finished->why) + "\n";
    return out;
}

client::Failure runFailed(const model::RunFinished& finished) {
    return localFailure(client::FailureCode::kServer, "The run failed", finished.why);
}

}  // namespace bulkhead::cli
