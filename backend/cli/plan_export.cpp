// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "backend/cli/cli.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/plan_routing.h"
#include "backend/common/output_file.h"
#include "backend/planner/export/engine_files.h"

namespace bulkhead::cli {
namespace {

struct ExportArguments {
    std::string plan, engine, out;
    uint32_t decoderLayers = 0;
};

int exportPlan(const Cli& cli, const ExportArguments& arguments) {
    const auto plan = readPlan(arguments.plan);
    if (!plan.ok())
        return refusePlan(cli, "Cannot read the plan", plan.status(),
                          "Make one with: bulkheadctl plan solve");
    const auto file = planner::engineFile(*plan, *enumFromName<planner::Engine>(arguments.engine),
                                          arguments.decoderLayers);
    if (!file.ok())
        return fail(cli, planFailure("Cannot export for " + arguments.engine, file.status()));
    if (arguments.out.empty() || arguments.out == "-") {
        std::fwrite(file->text.data(), 1, file->text.size(), stdout);
    } else {
        if (const absl::Status s = writeWhole(arguments.out, file->text); !s.ok())
            return fail(cli, {client::FailureCode::kInvalid, "Cannot write the export",
                              std::string(s.message()), "Choose another place with -o.", false});
    }
    for (const std::string& note : file->notes)
        if (!cli.json) std::fprintf(stderr, "note: %s\n", note.c_str());
    return kOk;
}

}  // namespace

void addPlanExport(CLI::App& plan, Cli& cli) {
    auto arguments = std::make_shared<ExportArguments>();
    CLI::App* verb = plan.add_subcommand("export", "A plan as the file a serving engine reads");
    verb->add_option("--plan", arguments->plan, "plan that solve wrote")->required();
    verb->add_option(
            "--to", arguments->engine,
            "sglang (--init-expert-location), trtllm (moe_config.load_balancer), ascend "
            "(expert_map_path), vllm (--eplb-config, as it takes no placement) or bulkhead "
            "(everything)")
        ->required()
        ->check(CLI::IsMember({"sglang", "trtllm", "ascend", "vllm", "bulkhead"}));
    verb->add_option("-o,--out", arguments->out, "file to write; default: standard output");
    verb->add_option("--decoder-layers", arguments->decoderLayers,
                     "sglang: decoder layers of the model; default: up to the last MoE layer");
    verb->callback([&cli, arguments] {
        cli.chosen = [&cli, arguments] { return exportPlan(cli, *arguments); };
    });
}

}  // namespace bulkhead::cli
