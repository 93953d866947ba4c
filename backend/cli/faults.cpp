// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "backend/cli/cli.h"
#include "backend/cli/confirm.h"
#include "backend/cli/session.h"
#include "backend/model/command_text.h"
#include "backend/model/json.h"

namespace bulkhead::cli {
namespace {

struct FaultOptions {
    std::string text;
    std::string job;
    bool yes = false;
    bool dryRun = false;
};

int inject(const Cli& cli, const FaultOptions& options) {
    const auto fault = model::parseFault(options.text);
    if (!fault.ok())
        return fail(cli, localFailure(client::FailureCode::kInvalid, "Cannot use this fault",
                                      std::string(fault.status().message())));
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(options.job);
    if (!job.ok()) return fail(cli, job.failure());
    const auto preflight = session.value()->await<model::Preflight>(
        [&](client::Client& c, auto reply) { c.preflight(job.value(), *fault, std::move(reply)); });
    if (!preflight.ok()) return fail(cli, preflight.failure());
    const model::Preflight& p = preflight.value();
    if (options.dryRun && cli.json) std::printf("%s\n", model::toJsonText(p).c_str());
    if (!p.allowed) return fail(cli, notAllowed(p));
    if (!cli.json) printPreflight(p);
    if (options.dryRun) return kOk;
    if (!confirmed(options.yes)) return fail(cli, notConfirmed(p));
    const auto id = session.value()->await<uint64_t>([&](client::Client& c, auto reply) {
        c.inject(job.value(), *fault, {"", p.revision}, std::move(reply));
    });
    if (!id.ok()) return fail(cli, id.failure());
    if (cli.json)
        std::printf("{\"fault\":%llu}\n", static_cast<unsigned long long>(id.value()));
    else
        std::printf("fault %llu: %s\n", static_cast<unsigned long long>(id.value()),
                    model::describe(*fault).c_str());
    return kOk;
}

int endFault(const Cli& cli, const std::string& wanted, uint64_t fault) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(wanted);
    if (!job.ok()) return fail(cli, job.failure());
    const auto done = session.value()->await<client::Done>([&](client::Client& c, auto reply) {
        c.endFault(job.value(), fault, {}, std::move(reply));
    });
    if (!done.ok()) return fail(cli, done.failure());
    if (!cli.json) std::printf("fault %llu ends\n", static_cast<unsigned long long>(fault));
    return kOk;
}

}  // namespace

void addFaults(CLI::App& app, Cli& cli) {
    auto options = std::make_shared<FaultOptions>();
    CLI::App* verb = app.add_subcommand("fault", "Break something in a running job on purpose");
    verb->add_option("fault", options->text, "what, e.g. kill:replica=2@step=50")->required();
    verb->add_option("-j,--job", options->job, "id of the job [the only one running]");
    verb->add_flag("-y,--yes", options->yes, "do not ask");
    verb->add_flag("--dry-run", options->dryRun, "only tell what it would do");
    verb->footer(
        "kill:replica=2@step=50            kill:rank=r2s1@step=50/exchange\n"
        "hang:rank=r1s0,for=3s              slow:rank=r0s1,factor=4,for=10s\n"
        "cut:replica=3,for=5s              delay:replica=1,by=20ms\n"
        "flip-gradient:replica=1@step=30   nan:replica=1   flip-parameter:replica=1\n"
        "fill-disk:node=node0,for=10s      kill-node:node=node1");
    verb->callback(
        [&cli, options] { cli.chosen = [&cli, options] { return inject(cli, *options); }; });

    auto job = std::make_shared<std::string>();
    auto fault = std::make_shared<uint64_t>(0);
    verb = app.add_subcommand("heal", "End a fault that lasts, or cancel one still to come");
    verb->add_option("fault", *fault, "its number")->required()->check(CLI::PositiveNumber);
    verb->add_option("-j,--job", *job, "id of the job [the only one running]");
    verb->callback([&cli, job, fault] {
        cli.chosen = [&cli, job, fault] { return endFault(cli, *job, *fault); };
    });
}

}  // namespace bulkhead::cli
