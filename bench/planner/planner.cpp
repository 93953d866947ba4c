// SPDX-License-Identifier: Apache-2.0
// `./dev bench planner`: see README.md.
#include <CLI/CLI.hpp>

#include "backend/planner/import/import.h"
#include "bench/planner/cases.h"

namespace bulkhead::bench {

planner::Routing readRecording(const std::string& path) {
    auto recording = planner::importRecording(path);
    need(recording.status());
    if (!recording->routing) die(absl::InvalidArgumentError(path + ": counts only"));
    return *std::move(recording->routing);
}

}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    using namespace bulkhead::bench;
    Settings settings;
    std::string part = "all";
    CLI::App app{"What plans are worth and what they cost"};
    app.add_option("--data", settings.data, "folder with esft and gptoss")->required();
    app.add_option("--python", settings.python, "interpreter with NumPy")->required();
    app.add_option("--eplb", settings.eplb, "EPLB's steps in Python")->required();
    addPlace(app, settings);
    app.add_option("--effort", settings.effort, "of the joint search");
    app.add_option("--seed", settings.seed, "of the joint search");
    app.add_option("--part", part, "all, requests, splits, small, tasks, routers, balance or scale")
        ->check(CLI::IsMember(
            {"all", "requests", "splits", "small", "tasks", "routers", "balance", "scale"}));
    app.add_option("--splits", settings.splits, "splits, small: random ones of each recording");
    app.add_option("--split-seed", settings.splitSeed, "of those");
    app.add_option("--model", settings.model,
                   "splits, small, tasks: esft, gptoss or (small) made alone");
    app.add_option("--target", settings.target,
                   "splits: sends, copies or tight (sends at cap 1.06) alone")
        ->check(CLI::IsMember({"sends", "copies", "tight"}));
    app.add_flag("--neighbours", settings.neighbours,
                 "splits: of each two neighbours one for either half, and plans for the recorded "
                 "mixture, instead of halves by lot");
    app.add_option("--own", settings.own,
                   "splits: of so many, plans from the scored half itself beside them");
    app.add_flag("--each", settings.each, "splits, small: a line for each");
    CLI11_PARSE(app, argc, argv);
    Report report("planner", {"case", "plan", "sends", "copies", "node load", "balancedness",
                              "worst layer", "bound", "time ms"});
    if (part == "all" || part == "requests") heldOutCases(settings, report);
    if (part == "all" || part == "splits") splitCases(settings, report);
    if (part == "all" || part == "small") littleCases(settings, report);
    if (part == "all" || part == "tasks") taskCases(settings, report);
    if (part == "all" || part == "routers") routerCases(settings, report);
    if (part == "all" || part == "balance") balanceCases(settings, report);
    if (part == "all" || part == "scale") scaleCases(settings, report);
    return report.finish(settings.out);
}
