// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <memory>

#include "backend/cli/cli.h"
#include "backend/cli/session.h"
#include "backend/cli/text.h"
#include "backend/model/command_text.h"
#include "backend/model/json.h"
#include "backend/model/run_figures.h"
#include "backend/model/units.h"

namespace bulkhead::cli {
namespace {

using Runs = std::array<std::string, 2>;

std::string decimals(double value, const char* format) {
    char text[32];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

std::vector<std::string> column(const std::string& run, const model::RunFigures& f) {
    return {run,
            std::to_string(f.steps),
            f.loss ? decimals(*f.loss, "%.4f") : "-",
            decimals(f.effectiveTime * 100, "%.1f %%"),
            std::to_string(f.incidents),
            model::humanDuration(f.survivorStallMs),
            f.meanRejoinMs ? model::humanDuration(*f.meanRejoinMs) : "-",
            std::to_string(f.samplesRedone),
            std::string(enumName(f.recovery))};
}

model::Json jsonOf(const std::string& run, const model::RunFigures& f) {
    model::Json json{{"run", run},
                     {"steps", f.steps},
                     {"effective_time", f.effectiveTime},
                     {"incidents", f.incidents},
                     {"survivor_stall_ms", f.survivorStallMs},
                     {"samples_redone", f.samplesRedone},
                     {"recovery", std::string(enumName(f.recovery))}};
    if (f.loss) json["loss"] = *f.loss;
    if (f.meanRejoinMs) json["mean_rejoin_ms"] = *f.meanRejoinMs;
    return json;
}

int compare(const Cli& cli, const Runs& runs) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    std::vector<std::vector<std::string>> rows;
    for (const char* name : {"", "STEPS", "LAST LOSS", "EFFECTIVE TIME", "INCIDENTS",
                             "SURVIVORS' STALL", "MEAN REJOIN", "SAMPLES REDONE", "RECOVERY"})
        rows.push_back({name});
    for (const std::string& run : runs) {
        const auto state = session.value()->await<client::StatePtr>(
            [&](client::Client& c, auto reply) { c.getState(run, 0, std::move(reply)); });
        if (!state.ok()) return fail(cli, state.failure());
        const model::RunFigures figures = model::figuresOf(*state.value());
        if (cli.json) std::printf("%s\n", model::dumpJson(jsonOf(run, figures)).c_str());
        const std::vector<std::string> cells = column(run, figures);
        for (size_t i = 0; i < rows.size(); ++i) rows[i].push_back(cells[i]);
    }
    if (!cli.json) std::printf("%s", table(rows).c_str());
    return kOk;
}

}  // namespace

void addCompare(CLI::App& app, Cli& cli) {
    auto runs = std::make_shared<Runs>();
    CLI::App* verb = app.add_subcommand("compare", "Two runs of a history side by side");
    verb->add_option("-f,--file", cli.file, "read this run file instead of asking a daemon");
    verb->add_option("first", (*runs)[0], "id of a run, or latest")->required();
    verb->add_option("second", (*runs)[1], "the other")->required();
    verb->callback([&cli, runs] { cli.chosen = [&cli, runs] { return compare(cli, *runs); }; });
}

}  // namespace bulkhead::cli
