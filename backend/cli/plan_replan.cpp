// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/plan_front.h"
#include "backend/model/json.h"
#include "backend/planner/solve/cross_validation.h"
#include "backend/planner/solve/replan.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

constexpr double kUsualCap = 1.15;
constexpr double kRareSend = 0.02;  ///< where only load counts, in loads

ReplanOptions optionsFor(const PlanOptions& options, const FrontOptions& wanted,
                         const Plan& current) {
    ReplanOptions made;
    made.seed = options.seed;
    made.rules = wanted.rules;
    made.homeCap = options.homeCap;
    made.loadCap = options.loadCap > 0          ? options.loadCap
                   : current.origin.loadCap > 0 ? current.origin.loadCap
                                                : kUsualCap;
    made.sampleTokens = 40000;
    made.rounds = 4;
    made.sweeps = static_cast<uint32_t>(std::ceil(20 * options.effort));
    made.proposalsPerUnit = 2000 * options.effort;
    if (wanted.objective == Objective::kCopies) {
        made.sends = 0;
        made.copies = 1;
    }
    made.weighLinks = weighsLinks(enumName(wanted.objective));
    if (wanted.objective == Objective::kBalance) {
        made.sends = kRareSend;
        made.copies = 0;
        made.loadCap = 1;
        made.loadWeight = 1;
    }
    return made;
}

/// Forecast of what planning from the one in use on is worth on requests not seen.
absl::StatusOr<Forecast> forecastFor(const Plan& current, const Plan& made, const RoutingView& view,
                                     const FrontOptions& wanted, const ReplanOptions& how) {
    CrossValidationOptions options;
    options.homes = homesFor(enumName(wanted.objective), wanted.joint.prefix, wanted.homeCap);
    options.seed = how.seed;
    const auto again = [&](const RoutingView& others) -> absl::StatusOr<Plan> {
        auto plan = replan(current, others, how);
        if (!plan.ok()) return plan.status();
        return std::move(plan->plan);
    };
    const auto validated = crossValidate(view, again, options);
    if (!validated.ok()) return validated.status();
    return forecastOf(view, made, *validated, options);
}

absl::StatusOr<Replanned> compared(const Plan& current, const RoutingView& view,
                                   const FrontOptions& wanted, ReplanOptions how) {
    auto made = replan(current, view, how);
    if (!made.ok()) return made.status();
    Replanned out{*std::move(made), {}};
    out.made.plan.origin.objective = std::string(enumName(wanted.objective));
    for (const auto& [name, plan] : {std::pair("in use", &current), {"after", &out.made.plan}}) {
        auto point = measured(name, *plan, view, wanted);
        if (!point.ok()) return point.status();
        out.points.push_back(*std::move(point));
    }
    return out;
}

/// The search minimises sends or copies and load above the cap; other objectives are what comes of
/// that, and a plan that is no better in them stays.
absl::StatusOr<Replanned> replannedFor(const Plan& current, const RoutingView& view,
                                       const FrontOptions& wanted, ReplanOptions how) {
    auto out = compared(current, view, wanted, how);
    if (!out.ok() || !out->made.changes || !wanted.rules.empty()) return out;
    const double was = figureOf(out->points[0], wanted.objective),
                 now = figureOf(out->points[1], wanted.objective);
    if (now < was || wanted.objective == Objective::kSends ||
        wanted.objective == Objective::kCopies)
        return out;
    how.leastGain = 1;
    out = compared(current, view, wanted, how);
    if (out.ok())
        out->made.plan.origin.reason = out->made.reason = absl::StrFormat(
            "kept: moving experts would not make %s less", std::string(enumName(wanted.objective)));
    return out;
}

void show(const Cli& cli, const PlanOptions& options, const Replanned& out) {
    const Replan& made = out.made;
    const std::vector<std::string> notes = planNotes(made.plan);
    if (cli.json) {
        model::Json points = model::Json::array();
        for (const FrontPoint& point : out.points) points.push_back(pointJson(point));
        const model::Json json{{"changes", made.changes},
                               {"new_homes", made.newHomes},
                               {"before", made.before},
                               {"after", made.after},
                               {"layers_changed", made.layersChanged},
                               {"migration", model::toJson(made.migration)},
                               {"points", std::move(points)},
                               {"forecast", model::toJson(made.plan.forecast)},
                               {"reason", made.reason},
                               {"notes", notes},
                               {"out", options.out}};
        std::printf("%s\n", model::dumpJson(json).c_str());
        return;
    }
    std::printf("%s%s; %.3f -> %.3f a token and layer; %llu slots to fetch, %.1f MB in %.4f s%s\n",
                pointsTable(out.points, {"", ""}, {{}, made.migration}).c_str(),
                made.reason.c_str(), made.before, made.after,
                static_cast<unsigned long long>(made.migration.slots), made.migration.bytes / 1e6,
                made.migration.seconds,
                made.migration.bytesAssumed ? " (expert size assumed)" : "");
    std::printf("%s", forecastTable(made.plan).c_str());
    for (const std::string& note : notes) std::printf("note: %s\n", note.c_str());
    if (!options.out.empty()) std::printf("written to %s\n", options.out.c_str());
}

}  // namespace

absl::StatusOr<Replanned> replannedFrom(const Plan& current, const PlanOptions& options,
                                        const Recording& recording, const FrontOptions& wanted) {
    const ReplanOptions how = optionsFor(options, wanted, current);
    auto out = replannedFor(current, wholeOf(*recording.routing), wanted, how);
    if (!out.ok()) return out;
    Plan& plan = out->made.plan;
    if (out->made.changes || out->made.newHomes) {
        plan.origin.source = recording.source;
        plan.origin.tokensDrawn = recording.tokensDrawn;
    } else {
        plan.origin = current.origin;
    }
    auto forecast = forecastFor(current, plan, wholeOf(*recording.routing), wanted, how);
    if (!forecast.ok()) return forecast.status();
    plan.forecast = *std::move(forecast);
    return out;
}

int solveFromCurrent(const Cli& cli, const PlanOptions& options, const Recording& recording,
                     const FrontOptions& wanted) {
    auto current = readPlan(options.current);
    if (!current.ok())
        return refusePlan(cli, "Cannot read the plan in use", current.status(), "Check --current.");
    const auto out = replannedFrom(*current, options, recording, wanted);
    if (!out.ok())
        return refusePlan(cli, "Cannot replan", out.status(),
                          "Check --current, --routing, --pin and --forbid; with few requests, "
                          "record more.");
    if (!options.out.empty())
        if (auto status = writePlan(out->made.plan, options.out); !status.ok())
            return refuseOut(cli, status);
    show(cli, options, *out);
    return kOk;
}

}  // namespace bulkhead::cli
