// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>

#include "backend/cli/cli.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/plan_routing.h"
#include "backend/model/json.h"
#include "backend/planner/characterise/characterise.h"
#include "backend/planner/characterise/report_text.h"
#include "backend/planner/export/recording_lines.h"

namespace bulkhead::cli {
namespace {

int characterise(const Cli& cli, const RoutingArguments& arguments,
                 const planner::CharacteriseOptions& options) {
    const auto recording = readRouting(arguments);
    if (!recording.ok()) return fail(cli, recording.failure());
    const planner::Characterisation it = planner::characterise(recording.value(), options);
    const std::string text = cli.json ? model::toJsonText(it) + "\n" : planner::reportText(it);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kOk;
}

/// Summarises the input on stderr, because the output may go to a file.
void tell(const Cli& cli, const planner::Recording& it, const std::string& file) {
    if (cli.json) return;
    std::fprintf(stderr, "%s: %u MoE layers x %u experts", it.source.c_str(), it.shape.layers,
                 it.shape.experts);
    if (it.routing)
        std::fprintf(stderr, ", %llu tokens of %zu requests",
                     static_cast<unsigned long long>(it.routing->tokens()),
                     it.routing->requests().size());
    else
        std::fprintf(stderr, ", counts in %zu windows", it.windows.size());
    std::fprintf(stderr, "%s%s\n", file.empty() ? "" : ", written to ", file.c_str());
    for (const std::string& note : it.notes) std::fprintf(stderr, "  note: %s\n", note.c_str());
}

int import(const Cli& cli, const RoutingArguments& arguments, const std::string& file) {
    const auto recording = readRouting(arguments);
    if (!recording.ok()) return fail(cli, recording.failure());
    const bool toFile = !file.empty() && file != "-";
    const absl::Status written = toFile ? writeRecording(recording.value(), file)
                                        : planner::writeLines(recording.value(), std::cout);
    if (!written.ok()) return fail(cli, planFailure("Cannot write the recording", written));
    std::cout.flush();
    if (!std::cout)
        return fail(cli,
                    {client::FailureCode::kInvalid, "Cannot write the recording",
                     "standard output cannot be written.", "Choose another place with -o.", false});
    tell(cli, recording.value(), toFile ? file : "");
    return kOk;
}

void addCharacterise(CLI::App& plan, Cli& cli) {
    auto arguments = std::make_shared<RoutingArguments>();
    auto options = std::make_shared<planner::CharacteriseOptions>();
    CLI::App* verb = plan.add_subcommand(
        "characterise", "What recorded routing shows: imbalance, domains, prefill and decode");
    addRoutingOptions(*verb, *arguments);
    verb->add_option("--stretches", options->driftWindows, "parts that drift is looked for in")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    verb->callback([&cli, arguments, options] {
        cli.chosen = [&cli, arguments, options] { return characterise(cli, *arguments, *options); };
    });
}

void addImport(CLI::App& plan, Cli& cli) {
    auto arguments = std::make_shared<RoutingArguments>();
    auto file = std::make_shared<std::string>();
    CLI::App* verb = plan.add_subcommand(
        "import", "Another program's recording as this project's own JSON Lines");
    addRoutingOptions(*verb, *arguments);
    verb->add_option("-o,--out", *file, "file to write; default: standard output");
    verb->callback([&cli, arguments, file] {
        cli.chosen = [&cli, arguments, file] { return import(cli, *arguments, *file); };
    });
}

}  // namespace

void addPlan(CLI::App& app, Cli& cli) {
    CLI::App* plan =
        app.add_subcommand("plan", "Expert placement, from recorded routing or for a running job");
    plan->require_subcommand(1);
    plan->fallthrough();
    addCharacterise(*plan, cli);
    addImport(*plan, cli);
    addPlanExport(*plan, cli);
    addPlanSolve(*plan, cli);
    addPlanEvaluate(*plan, cli);
    addPlanDiff(*plan, cli);
    addPlanLive(*plan, cli);
    addPlanCapture(*plan, cli);
    addPlanWatch(*plan, cli);
}

}  // namespace bulkhead::cli
