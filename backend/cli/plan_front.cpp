// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/plan_front.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/cli/text.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but words about the planner's values

std::string pointsTable(const std::vector<FrontPoint>& points,
                        const std::vector<std::string>& marks,
                        const std::vector<Migration>& moves) {
    std::vector<std::vector<std::string>> rows{
        {"PLAN", "SENDS/TOKEN", "COPIES/TOKEN", "BYTES/TOKEN", "NODE LOAD", "BALANCEDNESS",
         "STEP MS", "PADDED MS", "EXPERTS MS BY TOKENS", "BY ACTIVATED"}};
    if (!moves.empty()) rows[0].insert(rows[0].end(), {"MOVES MB", "SECONDS"});
    rows[0].emplace_back();
    for (size_t i = 0; i < points.size(); ++i) {
        const FrontPoint& p = points[i];
        rows.push_back({p.name, absl::StrFormat("%.3f", p.outcome.sendsPerToken),
                        absl::StrFormat("%.3f", p.outcome.copiesPerToken),
                        absl::StrFormat("%.0f", p.weighedBytes),
                        absl::StrFormat("%.3f", p.outcome.nodeLoadMaxOverMean),
                        absl::StrFormat("%.3f", p.outcome.balancedness),
                        absl::StrFormat("%.3f", p.time.stepSeconds * 1e3),
                        absl::StrFormat("%.3f", p.time.stepPaddedSeconds * 1e3),
                        absl::StrFormat("%.3f", p.time.expertSecondsByTokens * 1e3),
                        absl::StrFormat("%.3f", p.time.expertSecondsByActivated * 1e3)});
        if (!moves.empty()) {
            rows.back().push_back(absl::StrFormat("%.1f", moves[i].bytes / 1e6));
            rows.back().push_back(absl::StrFormat("%.4f", moves[i].seconds));
        }
        rows.back().push_back(marks[i]);
    }
    return table(rows);
}

std::string forecastTable(const Plan& plan) {
    const Forecast& it = plan.forecast;
    if (it.blocks == 0) return "";
    std::vector<std::vector<std::string>> rows{
        {"ON REQUESTS NOT SEEN", "EXPECTED", "5 %", "95 %", "ON THOSE PLANNED FROM"}};
    const auto add = [&](const char* name, auto figure) {
        const Range& range = it.expected.*figure.first;
        rows.push_back({name, absl::StrFormat("%.3f", range.mean),
                        absl::StrFormat("%.3f", range.low), absl::StrFormat("%.3f", range.high),
                        absl::StrFormat("%.3f", it.inSample.*figure.second)});
    };
    using Expected = FourFigures<Range>;
    using Seen = FourFigures<double>;
    add("sends per token", std::pair(&Expected::sends, &Seen::sends));
    add("copies per token", std::pair(&Expected::copies, &Seen::copies));
    add("node load max/mean", std::pair(&Expected::nodeLoad, &Seen::nodeLoad));
    add("GPU load max/mean", std::pair(&Expected::gpuLoad, &Seen::gpuLoad));
    if (it.byKind)
        return absl::StrCat(table(rows), "for requests of kinds that were not recorded: ", it.folds,
                            " plans, each made without one of the domains\n");
    return absl::StrCat(table(rows), "cross-validated: ", it.folds, " plans, each made without ",
                        it.folds == 2 ? "half" : absl::StrCat("one in ", it.folds), " of ",
                        it.blocks, it.byTime ? " stretches of time" : " blocks of whole requests",
                        "\n");
}

model::Json pointJson(const FrontPoint& point) {
    model::Json json = model::toJson(point.outcome);
    if (point.plan.forecast.blocks > 0) json["forecast"] = model::toJson(point.plan.forecast);
    json["name"] = point.name;
    json["weighed_bytes_per_token"] = point.weighedBytes;
    json["step"] = model::toJson(point.time);
    return json;
}

std::vector<std::string> planNotes(const Plan& plan) {
    std::vector<std::string> notes = forecastNotes(plan.forecast, plan.origin.tokens);
    if (plan.origin.tokensDrawn)
        notes.emplace_back(
            "the recording has counts only: the tokens were drawn from them, so that sends, bytes "
            "and times are those of made-up tokens");
    const uint32_t nodes = plan.topology.nodes(), groups = plan.shape.routerGroups;
    if (plan.origin.algorithm == "eplb_hierarchical" && (groups == 1 || groups % nodes != 0))
        notes.push_back(absl::StrCat(
            groups == 1
                ? "the model has no router groups"
                : absl::StrCat(groups, " router groups do not divide over ", nodes, " nodes"),
            ": eplb_hierarchical is then the same as eplb_global"));
    const uint32_t gpus = plan.topology.gpus(), slots = plan.slots();
    if (slots % gpus == 0) return notes;
    const uint32_t above = (slots / gpus + 1) * gpus - plan.shape.experts;
    const uint32_t below = slots / gpus * gpus;
    notes.push_back(absl::StrCat(
        slots, " slots do not divide over ", gpus,
        " GPUs, and engines want as many on each: --redundant ",
        below >= plan.shape.experts ? absl::StrCat(below - plan.shape.experts, " or ") : "", above,
        " would"));
    return notes;
}

}  // namespace bulkhead::cli
