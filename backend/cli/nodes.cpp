// SPDX-License-Identifier: Apache-2.0
// Verbs of what jobs run on: controllers and nodes.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "backend/cli/cli.h"
#include "backend/cli/confirm.h"
#include "backend/cli/follow.h"
#include "backend/cli/session.h"
#include "backend/cli/slurm_nodes.h"
#include "backend/cli/text.h"
#include "backend/model/event_json.h"
#include "backend/model/names.h"

namespace bulkhead::cli {
namespace {

using Nodes = std::vector<model::NodeInfo>;
constexpr std::chrono::milliseconds kLookEvery{200};

int printNodes(const Cli& cli, const client::Result<std::vector<model::NodeInfo>>& nodes) {
    if (!nodes.ok()) return fail(cli, nodes.failure());
    for (const model::NodeInfo& node : nodes.value())
        if (cli.json) std::printf("%s\n", model::toJsonText(node).c_str());
    if (cli.json) return kOk;
    std::vector<std::vector<std::string>> rows{
        {"NODE", "ADDRESS", "STATE", "SLOTS", "GPUS", "WHY"}};
    for (const model::NodeInfo& node : nodes.value())
        rows.push_back({node.node, node.address, std::string(enumName(node.state)),
                        absl::StrCat(node.used, " of ", node.slots),
                        absl::StrCat(node.gpusUsed, " of ", node.gpus), node.why});
    std::printf("%s", rows.size() > 1 ? table(rows).c_str() : "no agent has connected\n");
    return kOk;
}

int listNodes(const Cli& cli) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    return printNodes(cli,
                      session.value()->await<std::vector<model::NodeInfo>>(
                          [](client::Client& c, auto reply) { c.listNodes(std::move(reply)); }));
}

int forgetNode(const Cli& cli, const std::string& node, bool machineIsOff) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    return printNodes(
        cli,
        session.value()->await<std::vector<model::NodeInfo>>([&](client::Client& c, auto reply) {
            c.changeNode(node, model::NodeChange::kForget, machineIsOff, {}, std::move(reply));
        }));
}

struct DrainOptions {
    std::string node;
    bool anyway = false;
};

/// Has the replicas of each job leave a node: one at a time over all jobs, each until it trains
/// elsewhere.
class Drain {
  public:
    Drain(const Cli& cli, Session& session, const DrainOptions& options)
        : cli_(cli), session_(session), options_(options) {}

    int run() {
        const auto nodes = session_.await<Nodes>([&](client::Client& c, auto reply) {
            c.changeNode(options_.node, model::NodeChange::kCordon, false, {}, std::move(reply));
        });
        if (!nodes.ok()) return fail(cli_, nodes.failure());
        std::printf("%s is cordoned\n", options_.node.c_str());
        const Interrupts interrupts;
        for (;;) {
            const auto jobs = session_.await<std::vector<model::JobInfo>>(
                [](client::Client& c, auto reply) { c.listJobs(std::move(reply)); });
            if (!jobs.ok()) return fail(cli_, jobs.failure());
            bool empty = true;
            for (const model::JobInfo& job : jobs.value()) {
                if (job.phase == model::JobPhase::kFinished ||
                    job.phase == model::JobPhase::kFailed)
                    continue;
                const auto state = session_.stateOfJob(job.id);
                if (!state.ok()) return fail(cli_, state.failure());
                const auto left = next(job, *state.value());
                if (!left.ok()) return fail(cli_, left.failure());
                empty = left.value();
                if (!empty) break;
            }
            if (empty) break;
            if (interrupts.count() > 0) return interrupted();
            std::this_thread::sleep_for(kLookEvery);
        }
        std::printf("%s is empty; it stays cordoned\n", options_.node.c_str());
        return kOk;
    }

  private:
    struct Leaving {
        std::string job;
        int32_t replica = 0;
        bool released = false;
    };

    /// True when the job has nothing on the node, and none of its replicas is on its way.
    client::Result<bool> next(const model::JobInfo& job, const model::RunState& state) {
        if (leaving_ && leaving_->job == job.id) {
            const auto& replicas = state.replicas;
            const auto it = std::find_if(
                replicas.begin(), replicas.end(),
                [&](const model::ReplicaView& r) { return r.replica == leaving_->replica; });
            if (it == replicas.end()) {
                leaving_.reset();
                return false;
            }
            if (!leaving_->released && it->state == model::ReplicaState::kDrained) {
                if (auto done = act(job.id, model::ActionKind::kReleaseRejoin, it->replica);
                    !done.ok())
                    return done.failure();
                leaving_->released = true;
            }
            const bool left = leaving_->released && it->state == model::ReplicaState::kTraining;
            if (left)
                std::printf("replica %d of %s trains elsewhere\n", it->replica, job.id.c_str());
            std::fflush(stdout);
            if (left) leaving_.reset();
            return false;
        }
        for (const model::ReplicaView& replica : state.replicas) {
            if (!runsOn(state, replica, options_.node)) continue;
            if (auto room = checkRoom(job, replica.replica); !room.ok()) return room.failure();
            if (auto done = act(job.id, model::ActionKind::kDrain, replica.replica); !done.ok())
                return done.failure();
            leaving_ = {job.id, replica.replica};
            return false;
        }
        return true;
    }

    /// Slots on nodes that take ranks, as a whole: a replica may span several.
    client::Result<bool> checkRoom(const model::JobInfo& job, int32_t replica) {
        if (options_.anyway) return true;
        const auto nodes = session_.await<Nodes>(
            [](client::Client& c, auto reply) { c.listNodes(std::move(reply)); });
        if (!nodes.ok()) return nodes.failure();
        uint32_t free = 0;
        for (const model::NodeInfo& node : nodes.value())
            if (node.state == model::NodeState::kUp)
                free += node.slots - std::min(node.slots, node.used);
        if (free >= job.shards) return true;
        return client::Failure{
            client::FailureCode::kRefused, "Cannot drain " + options_.node,
            absl::StrCat("Replica ", replica, " of ", job.id, " needs ", job.shards,
                         " slots, and the other nodes have ", free, "."),
            "Add a node, or say --anyway: it waits for room then. The node stays cordoned.", false};
    }

    client::Result<bool> act(const std::string& job, model::ActionKind kind, int32_t replica) {
        model::Action action;
        action.kind = kind;
        action.replica = replica;
        for (int attempts = 5;;) {
            const auto preflight = session_.await<model::Preflight>(
                [&](client::Client& c, auto reply) { c.preflight(job, action, std::move(reply)); });
            if (!preflight.ok()) return preflight.failure();
            const model::Preflight& p = preflight.value();
            if (!p.allowed) return notAllowed(p);
            if (p.pauses && kind == model::ActionKind::kDrain && !options_.anyway)
                return client::Failure{client::FailureCode::kRefused,
                                       "Cannot drain " + options_.node, p.effect,
                                       "Wait until others train, or say --anyway. The node stays "
                                       "cordoned.",
                                       false};
            const auto done = session_.await<model::JobInfo>([&](client::Client& c, auto reply) {
                c.act(job, action, {"", p.revision}, std::move(reply));
            });
            if (!done.ok() && done.failure().code == client::FailureCode::kStale && --attempts > 0)
                continue;
            if (!done.ok()) return done.failure();
            if (kind == model::ActionKind::kDrain)
                std::printf("%s of %s\n", p.title.c_str(), job.c_str());
            std::fflush(stdout);
            return true;
        }
    }

    int interrupted() const {
        if (leaving_ && !leaving_->released)
            std::fprintf(stderr,
                         "bulkheadctl: replica %d of %s leaves %s and stays out until bulkheadctl "
                         "release %d --job %s\n",
                         leaving_->replica, leaving_->job.c_str(), options_.node.c_str(),
                         leaving_->replica, leaving_->job.c_str());
        std::fprintf(stderr, "bulkheadctl: %s stays cordoned\n", options_.node.c_str());
        return kInterrupted;
    }

    const Cli& cli_;
    Session& session_;
    const DrainOptions& options_;
    std::optional<Leaving> leaving_;
};

int drainNode(const Cli& cli, const DrainOptions& options) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    return Drain(cli, *session.value(), options).run();
}

int listControllers(const Cli& cli) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto info = session.value()->await<model::ServerInfo>(
        [](client::Client& client, client::Reply<model::ServerInfo> reply) {
            client.handshake(std::move(reply));
        });
    if (!info.ok()) return fail(cli, info.failure());
    const model::ServerInfo& server = info.value();
    if (cli.json) {
        std::printf("%s\n", model::toJsonText(server).c_str());
        return kOk;
    }
    if (server.leader.empty()) {
        std::printf("%s alone: it was started without --etcd\n", server.host.c_str());
        return kOk;
    }
    std::vector<std::vector<std::string>> rows{{"CONTROLLER", "STATE"}, {server.leader, "leads"}};
    for (const std::string& name : server.standbys) rows.push_back({name, "stands by"});
    std::printf("%s", table(rows).c_str());
    if (server.standbys.empty())
        std::printf("no other stands by: if this one ends, jobs wait until it is back\n");
    return kOk;
}

}  // namespace

void addNodes(CLI::App& app, Cli& cli) {
    CLI::App* list = app.add_subcommand("nodes", "List the nodes whose agents have connected");
    auto forgotten = std::make_shared<std::string>();
    auto off = std::make_shared<bool>(false);
    CLI::App* forget = list->add_subcommand("forget", "Strike a lost node off the list");
    forget->add_option("node", *forgotten, "name of the node")->required()->check(nodeName());
    forget->add_flag("--machine-is-off", *off,
                     "ranks of which nothing is known have ended: their replicas start elsewhere");
    forget->callback([&cli, forgotten, off] {
        cli.chosen = [&cli, forgotten, off] { return forgetNode(cli, *forgotten, *off); };
    });
    auto draining = std::make_shared<DrainOptions>();
    CLI::App* drain = list->add_subcommand(
        "drain", "Cordon a node, and have its replicas leave it for others, one after another");
    drain->add_option("node", draining->node, "name of the node")->required()->check(nodeName());
    drain->add_flag("--anyway", draining->anyway,
                    "also where a replica then waits for room, or too few train meanwhile");
    drain->callback(
        [&cli, draining] { cli.chosen = [&cli, draining] { return drainNode(cli, *draining); }; });
    list->callback([&cli, list] {
        if (list->get_subcommands().empty()) cli.chosen = [&cli] { return listNodes(cli); };
    });

    app.add_subcommand("controllers", "The controller that leads, and those that stand by")
        ->callback([&cli] { cli.chosen = [&cli] { return listControllers(cli); }; });
}

}  // namespace bulkhead::cli
