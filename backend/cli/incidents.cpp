// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "backend/cli/cli.h"
#include "backend/cli/session.h"
#include "backend/model/event_json.h"
#include "backend/model/incident_card.h"

namespace bulkhead::cli {
namespace {

struct Wanted {
    std::string run = "latest";
    bool openOnly = false;
    model::Prices prices;
};

int incidents(const Cli& cli, const Wanted& wanted) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto state = session.value()->await<client::StatePtr>(
        [&](client::Client& c, auto reply) { c.getState(wanted.run, 0, std::move(reply)); });
    if (!state.ok()) return fail(cli, state.failure());
    const model::RunState& s = *state.value();
    size_t shown = 0;
    for (const model::IncidentCard& card : model::incidentCards(s, wanted.prices)) {
        if (wanted.openOnly && !card.open) continue;
        if (cli.json)
            std::printf("%s\n", model::toJsonText(card).c_str());
        else
            std::printf("%s%s", shown > 0 ? "\n" : "",
                        model::cardText(card, s.startedNs, s.spec.name).c_str());
        ++shown;
    }
    if (shown == 0 && !cli.json) std::printf("no incident\n");
    if (!cli.json && s.incidents.total() > s.incidents.size())
        std::printf(
            "\nthe newest %zu of %llu incidents; bulkheadctl events --type "
            "incident_opened,incident_closed has all\n",
            s.incidents.size(), static_cast<unsigned long long>(s.incidents.total()));
    return kOk;
}

}  // namespace

void addIncidents(CLI::App& app, Cli& cli) {
    auto wanted = std::make_shared<Wanted>();
    CLI::App* verb = app.add_subcommand(
        "incidents", "What went wrong, when it is over, what it costs and what to do");
    verb->add_option("run", wanted->run, "id, or latest")->capture_default_str();
    verb->add_option("-f,--file", cli.file, "read this run file instead of asking a daemon");
    verb->add_flag("--open", wanted->openOnly, "only what is not over");
    verb->add_option("--gpu-hour-price", wanted->prices.gpuHour, "of one GPU for an hour")
        ->envname(model::Prices::kGpuHourVariable)
        ->check(within(0, 1e9));
    verb->add_option("--currency", wanted->prices.currency, "that the price is in")
        ->capture_default_str();
    verb->callback(
        [&cli, wanted] { cli.chosen = [&cli, wanted] { return incidents(cli, *wanted); }; });
}

}  // namespace bulkhead::cli
