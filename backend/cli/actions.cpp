// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/cli/cli.h"
#include "backend/cli/confirm.h"
#include "backend/cli/session.h"
#include "backend/common/file_system.h"
#include "backend/model/json.h"

namespace bulkhead::cli {
namespace {

struct ActOptions {
    model::Action action;
    std::string job;
    bool yes = false;
    bool dryRun = false;
};

/// Takes something away from the job: asked before it is done.
bool asksFirst(model::ActionKind kind) {
    switch (kind) {
        case model::ActionKind::kDrain:
        case model::ActionKind::kCordon:
        case model::ActionKind::kHoldRejoin:
        case model::ActionKind::kRestartReplica:
        case model::ActionKind::kStop:
        case model::ActionKind::kStopNow:
        case model::ActionKind::kSetPolicy:
        case model::ActionKind::kChangeLayout:
            return true;
        default:
            return false;
    }
}

/// An action is tried so often when the job changes between its pre-flight and it.
constexpr int kAttempts = 5;

/// The answer says that it was ordered; it is done after the current step or later.
bool isLater(model::ActionKind kind) {
    switch (kind) {
        case model::ActionKind::kStop:
        case model::ActionKind::kStopNow:
        case model::ActionKind::kPause:
        case model::ActionKind::kCheckpoint:
            return true;
        default:
            return false;
    }
}

/// Changes a node while no job runs that a pre-flight could look at.
int changeNode(const Cli& cli, Session& session, const ActOptions& options) {
    const auto change = options.action.kind == model::ActionKind::kCordon
                            ? model::NodeChange::kCordon
                            : model::NodeChange::kUncordon;
    if (!options.dryRun) {
        const auto done =
            session.await<std::vector<model::NodeInfo>>([&](client::Client& c, auto reply) {
                c.changeNode(options.action.node, change, false, {}, std::move(reply));
            });
        if (!done.ok()) return fail(cli, done.failure());
        for (const model::NodeInfo& node : done.value())
            if (cli.json && node.node == options.action.node)
                std::printf("%s\n", model::toJsonText(node).c_str());
    }
    if (!cli.json)
        std::printf("%s node %s%s\n", change == model::NodeChange::kCordon ? "Cordon" : "Uncordon",
                    options.action.node.c_str(), options.dryRun ? ": no job runs" : ": done");
    return kOk;
}

int act(const Cli& cli, const ActOptions& options) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(options.job);
    const bool ofNode = options.action.kind == model::ActionKind::kCordon ||
                        options.action.kind == model::ActionKind::kUncordon;
    if (!job.ok() && job.failure().code == client::FailureCode::kNotFound && ofNode)
        return changeNode(cli, *session.value(), options);
    if (!job.ok()) return fail(cli, job.failure());
    client::Result<model::JobInfo> done = model::JobInfo{};
    std::string title;
    // --yes given beforehand holds for any later state of the job.
    int attempts = options.yes ? kAttempts : 1;
    do {
        const auto preflight =
            session.value()->await<model::Preflight>([&](client::Client& c, auto reply) {
                c.preflight(job.value(), options.action, std::move(reply));
            });
        if (!preflight.ok()) return fail(cli, preflight.failure());
        const model::Preflight& p = preflight.value();
        if (options.dryRun && cli.json) std::printf("%s\n", model::toJsonText(p).c_str());
        if (!p.allowed) return fail(cli, notAllowed(p));
        if (!cli.json && title.empty()) printPreflight(p);
        if (options.dryRun) return kOk;
        if (asksFirst(options.action.kind) && !confirmed(options.yes))
            return fail(cli, notConfirmed(p));
        title = p.title;
        done = session.value()->await<model::JobInfo>([&](client::Client& c, auto reply) {
            c.act(job.value(), options.action, {"", p.revision}, std::move(reply));
        });
    } while (!done.ok() && done.failure().code == client::FailureCode::kStale && --attempts > 0);
    if (!done.ok()) return fail(cli, done.failure());
    const model::JobInfo& now = done.value();
    if (cli.json)
        std::printf("%s\n", model::toJsonText(now).c_str());
    else if (isLater(options.action.kind) && now.phase != model::JobPhase::kFinished)
        std::printf("%s: ordered; the job is %s%s%s\n", title.c_str(),
                    std::string(enumName(now.phase)).c_str(), now.why.empty() ? "" : ": ",
                    now.why.c_str());
    else
        std::printf("%s: done\n", title.c_str());
    return kOk;
}

/// One verb; what it is aimed at follows it.
std::shared_ptr<ActOptions> addVerb(CLI::App& app, Cli& cli, const char* name, const char* help,
                                    model::ActionKind kind, CLI::App** verb) {
    auto options = std::make_shared<ActOptions>();
    options->action.kind = kind;
    *verb = app.add_subcommand(name, help);
    (*verb)->add_option("-j,--job", options->job, "id of the job [the only one running]");
    (*verb)->add_flag("-y,--yes", options->yes, "do not ask");
    (*verb)->add_flag("--dry-run", options->dryRun, "only tell what it would do");
    (*verb)->callback(
        [&cli, options] { cli.chosen = [&cli, options] { return act(cli, *options); }; });
    return options;
}

/// {"expert_shard": [[...], ...], "domain_share": [[...], ...]}: for each mixture layer the shard
/// of each expert; for each domain the parts of its samples that each shard computes, left out
/// where any shard computes any.
struct PlacementFile {
    std::vector<std::vector<int32_t>> expertShard;
    std::vector<std::vector<uint32_t>> domainShare;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("expert_shard", self.expertShard);
        visit("domain_share", self.domainShare);
    }
};

template <class T>
std::vector<T> flat(const std::vector<std::vector<T>>& rows) {
    std::vector<T> all;
    for (const std::vector<T>& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
}

constexpr uint64_t kMostPlacementBytes = 16 << 20;

absl::StatusOr<PlacementFile> readPlacement(const std::string& path) {
    const auto text = readAtMost(path, kMostPlacementBytes);
    if (!text.ok()) return text.status();
    const auto file = model::fromJsonText<PlacementFile>(*text, model::UnknownKeys::kRefuse);
    if (!file.ok())
        return absl::InvalidArgumentError(
            path + ": " + std::string(file.status().message()) +
            R"(; expected {"expert_shard": [[0, 1, ...], ...]}, a list for each mixture layer)");
    return *file;
}

void addLayout(CLI::App& app, Cli& cli) {
    CLI::App* verb = nullptr;
    auto options = addVerb(app, cli, "layout", "Move experts between the shards of every replica",
                           model::ActionKind::kChangeLayout, &verb);
    auto path = std::make_shared<std::string>();
    verb->add_option(
            "placement", *path,
            R"(JSON file: {"expert_shard": [[shard of each expert] per mixture layer], "domain_share": [[parts of its samples that each shard computes] per domain]}; domain_share may be left out)")
        ->required();
    verb->callback([&cli, options, path] {
        cli.chosen = [&cli, options, path] {
            const absl::StatusOr<PlacementFile> placement = readPlacement(*path);
            if (!placement.ok())
                return static_cast<int>(fail(
                    cli, localFailure(client::FailureCode::kInvalid, "cannot use the placement",
                                      std::string(placement.status().message()))));
            options->action.expertShard = flat(placement->expertShard);
            options->action.domainShare = flat(placement->domainShare);
            return act(cli, *options);
        };
    });
}

}  // namespace

void addActions(CLI::App& app, Cli& cli) {
    using Kind = model::ActionKind;
    struct Named {
        const char* name;
        const char* help;
        Kind kind;
    };
    CLI::App* verb = nullptr;
    for (const Named& one :
         {Named{"drain", "Take a replica out after its current step", Kind::kDrain},
          Named{"hold", "Keep a replica out when it is lost", Kind::kHoldRejoin},
          Named{"release", "End a hold or a drain", Kind::kReleaseRejoin},
          Named{"restart", "Stop a replica and start it again", Kind::kRestartReplica}}) {
        auto options = addVerb(app, cli, one.name, one.help, one.kind, &verb);
        verb->add_option("replica", options->action.replica, "the replica, as 2 or r2")
            ->required()
            ->transform(replicaNumber());
    }
    for (const Named& one : {Named{"cordon", "Start no more ranks on a node", Kind::kCordon},
                             Named{"uncordon", "Let a node take ranks again", Kind::kUncordon}}) {
        auto options = addVerb(app, cli, one.name, one.help, one.kind, &verb);
        verb->add_option("node", options->action.node, "name of the node")
            ->required()
            ->check(nodeName());
    }
    for (const Named& one :
         {Named{"pause", "Hold the job after its current step", Kind::kPause},
          Named{"resume", "Let a paused job go on", Kind::kResume},
          Named{"checkpoint", "Write a checkpoint of the next step; export or import one",
                Kind::kCheckpoint},
          Named{"stop", "End the job with a checkpoint", Kind::kStop}}) {
        auto options = addVerb(app, cli, one.name, one.help, one.kind, &verb);
        if (one.kind == Kind::kStop)
            verb->add_flag_callback(
                "--without-checkpoint", [options] { options->action.kind = Kind::kStopNow; },
                "lose every step since the last checkpoint; also ends a stop that waits for one");
        if (one.kind == Kind::kCheckpoint) {
            addCheckpointFiles(*verb, cli);
            verb->callback([&cli, options, verb] {
                if (verb->get_subcommands().empty())
                    cli.chosen = [&cli, options] { return act(cli, *options); };
            });
        }
    }
    addLayout(app, cli);
    CLI::App* policy = app.add_subcommand("policy", "Policies of a running job");
    policy->require_subcommand(1);
    auto options = addVerb(*policy, cli, "set", "Change one policy", Kind::kSetPolicy, &verb);
    verb->add_option("policy", options->action.policy, "name, as in a job file's [policies]")
        ->required();
    verb->add_option("value", options->action.value, "its new value")->required();
}

}  // namespace bulkhead::cli
