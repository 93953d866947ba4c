// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/slurm_nodes.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace bulkhead::cli {
namespace {

using model::ActionKind;

/// The state without the marks behind it: "down*" does not respond, "idle~" is switched off.
std::string plainState(const std::string& state) {
    return state.substr(0, state.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"));
}

bool isOneOf(const std::string& state, std::initializer_list<std::string_view> states) {
    return std::find(states.begin(), states.end(), plainState(state)) != states.end();
}

const model::NodeView* find(const model::RunState& job, const std::string& name) {
    for (const model::NodeView& node : job.nodes)
        if (node.node == name) return &node;
    return nullptr;
}

bool isHere(const model::RunState& job, int32_t replica, const std::string& node) {
    return std::any_of(job.ranks.begin(), job.ranks.end(), [&](const model::RankView& rank) {
        return rank.rank.replica == replica && rank.node == node && rank.pid != 0;
    });
}

/// It has processes that may be asked to leave.
bool runs(const model::ReplicaView& replica) {
    using State = model::ReplicaState;
    return replica.state >= State::kStarting && replica.state <= State::kTraining;
}

std::string author(const SlurmNode& node) {
    const bool told = !node.reason.empty() && node.reason != "none";
    return absl::StrCat("slurm: ", node.name, " is ", plainState(node.state),
                        told ? absl::StrCat(" (", node.reason, ")") : "");
}

model::Action nodeAction(ActionKind kind, const std::string& node) {
    model::Action action;
    action.kind = kind;
    action.node = node;
    return action;
}

model::Action replicaAction(ActionKind kind, int32_t replica) {
    model::Action action;
    action.kind = kind;
    action.replica = replica;
    return action;
}

}  // namespace

bool runsOn(const model::RunState& job, const model::ReplicaView& replica,
            const std::string& node) {
    return runs(replica) && isHere(job, replica.replica, node);
}

bool SlurmNode::isDown() const {
    return isOneOf(state, {"down", "error"});
}

bool SlurmNode::isWithdrawn() const {
    return isDown() || isOneOf(state, {"drained", "draining", "fail", "failing"});
}

std::vector<SlurmNode> parseSinfo(const std::string& text) {
    std::vector<SlurmNode> nodes;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const size_t state = line.find('|');
        const size_t reason = state == line.npos ? line.npos : line.find('|', state + 1);
        if (reason == line.npos || state == 0) continue;
        SlurmNode node{line.substr(0, state), line.substr(state + 1, reason - state - 1),
                       line.substr(reason + 1)};
        if (std::none_of(nodes.begin(), nodes.end(),
                         [&](const SlurmNode& other) { return other.name == node.name; }))
            nodes.push_back(std::move(node));
    }
    return nodes;
}

std::string ordersText(const SlurmOrders& orders) {
    std::string text;
    for (const std::string& node : orders.cordoned) absl::StrAppend(&text, "cordoned ", node, "\n");
    for (const int32_t replica : orders.drained) absl::StrAppend(&text, "drained ", replica, "\n");
    for (const std::string& node : orders.replaced) absl::StrAppend(&text, "replaced ", node, "\n");
    return text;
}

SlurmOrders parseOrders(const std::string& text) {
    SlurmOrders orders;
    std::istringstream lines(text);
    for (std::string what, whom; lines >> what >> whom;) {
        int32_t replica = 0;
        if (what == "cordoned") orders.cordoned.insert(whom);
        if (what == "replaced") orders.replaced.insert(whom);
        if (what == "drained" && absl::SimpleAtoi(whom, &replica)) orders.drained.insert(replica);
    }
    return orders;
}

std::vector<SlurmOrder> ordersFor(const std::vector<SlurmNode>& nodes, const model::RunState& job,
                                  const SlurmOrders& given) {
    std::vector<SlurmOrder> orders;
    bool leaves = !given.drained.empty();
    for (const SlurmNode& node : nodes) {
        const model::NodeView* seen = find(job, node.name);
        if (seen == nullptr) continue;
        const bool ours = given.cordoned.contains(node.name);
        if (node.isWithdrawn() && !ours && seen->state != model::NodeState::kCordoned)
            orders.push_back({nodeAction(ActionKind::kCordon, node.name), author(node)});
        if (!node.isWithdrawn() && ours)
            orders.push_back({nodeAction(ActionKind::kUncordon, node.name), author(node)});
        if (!node.isWithdrawn() || node.isDown()) continue;
        for (const model::ReplicaView& replica : job.replicas)
            if (!leaves && runsOn(job, replica, node.name)) {
                orders.push_back(
                    {replicaAction(ActionKind::kDrain, replica.replica), author(node)});
                leaves = true;
            }
    }
    for (const model::ReplicaView& replica : job.replicas)
        if (replica.state == model::ReplicaState::kDrained &&
            given.drained.contains(replica.replica))
            orders.push_back({replicaAction(ActionKind::kReleaseRejoin, replica.replica),
                              "slurm: it has left the node"});
    return orders;
}

std::vector<std::string> nodesToReplace(const std::vector<SlurmNode>& nodes,
                                        const model::RunState& job, const SlurmOrders& given) {
    std::vector<std::string> lost;
    for (const SlurmNode& node : nodes) {
        const model::NodeView* seen = find(job, node.name);
        if (node.isWithdrawn() && seen != nullptr && seen->state == model::NodeState::kLost &&
            !given.replaced.contains(node.name))
            lost.push_back(node.name);
    }
    return lost;
}

SlurmOrders settled(const std::vector<SlurmNode>& nodes, const model::RunState& job,
                    SlurmOrders given) {
    std::erase_if(given.replaced, [&](const std::string& name) {
        const model::NodeView* node = find(job, name);
        return node != nullptr && node->state != model::NodeState::kLost;
    });
    std::erase_if(given.drained, [&](int32_t number) {
        return std::any_of(job.replicas.begin(), job.replicas.end(), [&](const auto& replica) {
            return replica.replica == number && runs(replica) &&
                   std::none_of(nodes.begin(), nodes.end(), [&](const SlurmNode& node) {
                       return node.isWithdrawn() && isHere(job, number, node.name);
                   });
        });
    });
    return given;
}

void note(SlurmOrders& given, const model::Action& action) {
    if (action.kind == ActionKind::kCordon) given.cordoned.insert(action.node);
    if (action.kind == ActionKind::kUncordon) given.cordoned.erase(action.node);
    if (action.kind == ActionKind::kDrain) given.drained.insert(action.replica);
    if (action.kind == ActionKind::kReleaseRejoin) given.drained.erase(action.replica);
}

}  // namespace bulkhead::cli
