// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "backend/cli/cli.h"
#include "backend/cli/follow.h"
#include "backend/cli/session.h"

namespace bulkhead::cli {
namespace {

struct ReplayOptions {
    std::string run = "latest";
    double speed = 1;
    uint64_t fromStep = 0;
    bool everyEvent = false;
};

int replay(const Cli& cli, const ReplayOptions& options) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto id = session.value()->await<std::string>(
        [&](client::Client& c, auto reply) { c.openReplay(options.run, std::move(reply)); });
    if (!id.ok()) return fail(cli, id.failure());
    const auto control = [&](model::ReplayControl order) {
        return session.value()->await<model::ReplayPosition>([&](client::Client& c, auto reply) {
            c.controlReplay(id.value(), order, std::move(reply));
        });
    };
    model::ReplayControl first;
    first.speed = options.speed;
    if (options.fromStep > 0) first.seekStep = options.fromStep;
    if (const auto placed = control(first); !placed.ok()) return fail(cli, placed.failure());
    const Interrupts interrupts;
    Follower follower(session.value()->client(), {.job = "", .replay = id.value()}, cli.json,
                      options.everyEvent ? Shows::kEveryEvent : Shows::kSummary);
    // Events played before anybody listens would arrive as a snapshot.
    follower.awaitFirst();
    model::ReplayControl play;
    play.paused = false;
    if (const auto played = control(play); !played.ok()) return fail(cli, played.failure());
    while (!follower.tick())
        if (interrupts.count() > 0) return kInterrupted;
    if (const auto failure = follower.failure()) return fail(cli, *failure);
    return kOk;
}

}  // namespace

void addReplay(CLI::App& app, Cli& cli) {
    auto options = std::make_shared<ReplayOptions>();
    CLI::App* verb = app.add_subcommand("replay", "Play a past run back");
    verb->add_option("-f,--file", cli.file, "read this run file instead of asking a daemon");
    verb->add_option("run", options->run, "id, or latest")->capture_default_str();
    verb->add_option("--speed", options->speed, "run seconds per second")
        ->check(within(0.01, 10000.0))
        ->capture_default_str();
    verb->add_option("--from-step", options->fromStep, "begin after this step");
    verb->add_flag("--events", options->everyEvent, "every event instead of a summary a second");
    verb->callback(
        [&cli, options] { cli.chosen = [&cli, options] { return replay(cli, *options); }; });
}

}  // namespace bulkhead::cli
