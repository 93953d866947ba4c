// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/program/ett.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/model/what_if.h"

namespace bulkhead::simulation {
namespace {

using model::WhatIfPreset;
using model::WhatIfResult;

constexpr double kMostDays = 36500;

struct Row {
    WhatIfPreset preset;  ///< with what was changed; no published figure then
    WhatIfPreset asKept;
    WhatIfResult result;
};

absl::StatusOr<std::vector<Row>> rowsOf(const EttArguments& a) {
    std::vector<Row> rows;
    std::string known;
    for (const WhatIfPreset& p : model::whatIfPresets()) {
        known.append(" ").append(p.name);
        if (a.preset.empty() || a.preset == p.name) rows.push_back({p, p, {}});
    }
    if (rows.empty())
        return absl::InvalidArgumentError(
            absl::StrCat("--preset ", a.preset, ": no such preset; one of:", known));
    if (!(a.days > 0 && a.days <= kMostDays))
        return absl::OutOfRangeError(
            absl::StrCat("--days ", a.days, ": expected more than 0, at most ", kMostDays));
    for (Row& row : rows) {
        for (const std::string& change : a.changes) {
            const size_t equals = change.find('=');
            if (equals == std::string::npos)
                return absl::InvalidArgumentError(
                    absl::StrCat("--set ", change, ": expected KEY=VALUE"));
            const absl::Status status = model::setWhatIf(
                row.preset.scenario, change.substr(0, equals), change.substr(equals + 1));
            if (!status.ok())
                return absl::InvalidArgumentError(
                    absl::StrCat("--set ", change, ": ", status.message()));
        }
        if (!a.changes.empty()) row.preset.published = 0;
        row.result = model::simulate(row.preset.scenario, a.days, a.seed);
    }
    return rows;
}

std::string nameOf(size_t loss) {
    return std::string(model::timeLossName(static_cast<model::TimeLoss>(loss)));
}

std::string_view trimmed(std::string_view title) {
    return title.substr(std::min(title.find_first_not_of(' '), title.size()));
}

nlohmann::json parametersOf(const Row& row) {
    nlohmann::json out;
    for (const model::WhatIfParameter& p : model::whatIfParameters()) {
        const double value = row.preset.scenario.*p.field;
        const bool changed = value != row.asKept.scenario.*p.field;
        out[std::string(p.key)] = {
            {"value", value},
            {"unit", p.unit},
            {"source",
             changed ? "set on the command line" : model::whatIfSource(row.preset.name, p.key)}};
    }
    return out;
}

nlohmann::json toJson(const Row& row) {
    using enum model::WhatIfRecovery;
    const WhatIfResult& r = row.result;
    const model::WhatIf& s = row.preset.scenario;
    nlohmann::json lost;
    for (size_t i = 0; i < model::kTimeLosses; ++i) lost[nameOf(i)] = r.lost[i];
    nlohmann::json out = {
        {"preset", row.preset.name},
        {"title", trimmed(row.preset.title)},
        {"recovery", s.recovery == kRestartAll ? "restart_all" : "fault_tolerant"},
        {"spacing", s.spacing == model::FailureSpacing::kEven ? "even" : "exponential"},
        {"parameters", parametersOf(row)},
        {"effective", r.effective},
        {"per_provisioned", r.perProvisioned},
        {"error", r.error},
        {"lost", lost},
        {"failures", r.failures},
        {"mean_interval_s", r.meanIntervalS},  // null: there was none
        {"stall_s", r.stallS},
        {"samples_redone", r.samplesRedone},
        {"whole_job_lost", r.wholeJobLost}};
    if (row.preset.published > 0) out["published"] = row.preset.published;
    return out;
}

void printTable(const EttArguments& a, const std::vector<Row>& rows) {
    std::printf(
        "Effective training time over %g days, seed %llu; percent of all active GPUs' "
        "time.\n",
        a.days, static_cast<unsigned long long>(a.seed));
    for (const std::string& change : a.changes) std::printf("With %s.\n", change.c_str());
    std::array<bool, model::kTimeLosses> shown{};
    for (const Row& row : rows)
        for (size_t i = 0; i < model::kTimeLosses; ++i)
            shown[i] = shown[i] || row.result.lost[i] > 0;
    std::string head = absl::StrFormat("\n%-33s%10s%7s%6s%12s%10s%13s", "", "published", "ours",
                                       "+-", "provisioned", "failures", "interval min");
    for (size_t i = 0; i < model::kTimeLosses; ++i)
        if (shown[i]) absl::StrAppendFormat(&head, "%12s", nameOf(i));
    std::puts(head.c_str());
    for (const Row& row : rows) {
        const WhatIfResult& r = row.result;
        const double published = row.preset.published;
        std::string line = absl::StrFormat(
            "%-33s%10s%7.2f%6.2f%12.2f%10.0f%13s", std::string(row.preset.title),
            published > 0 ? absl::StrFormat("%.0f", 100 * published) : "-", 100 * r.effective,
            100 * r.error, 100 * r.perProvisioned, r.failures,
            std::isfinite(r.meanIntervalS) ? absl::StrFormat("%.2f", r.meanIntervalS / 60) : "-");
        for (size_t i = 0; i < model::kTimeLosses; ++i)
            if (shown[i]) absl::StrAppendFormat(&line, "%12.3f", 100 * r.lost[i]);
        std::puts(line.c_str());
    }
    std::puts(
        "\nA column of lost time that is not shown is 0 everywhere. Every assumption and its "
        "source: --json.");
}

}  // namespace

int showEtt(const EttArguments& a) {
    const auto rows = rowsOf(a);
    if (!rows.ok()) {
        std::fprintf(stderr, "bulkhead-sim: %s\n", std::string(rows.status().message()).c_str());
        return kUsage;
    }
    if (!a.json) {
        printTable(a, *rows);
        return 0;
    }
    nlohmann::json out = {
        {"days", a.days}, {"seed", a.seed}, {"scenarios", nlohmann::json::array()}};
    for (const Row& row : *rows) out["scenarios"].push_back(toJson(row));
    std::puts(out.dump(2).c_str());
    return 0;
}

}  // namespace bulkhead::simulation
