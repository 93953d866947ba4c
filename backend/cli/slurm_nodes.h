// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "backend/model/command.h"
#include "backend/model/run_state.h"

/// The states that Slurm tells of nodes, as orders to a job that runs on them. Pure; thread: any.
namespace bulkhead::cli {

struct SlurmNode {
    std::string name;
    std::string state;   ///< as sinfo's %T: "draining", "down*"
    std::string reason;  ///< the administrator's or Slurm's; "none": there is none
    bool isDown() const;
    /// No new work is to start on it: down, or being drained.
    bool isWithdrawn() const;
};

/// Lines of `sinfo --noheader --Node --format=%N|%T|%E`; a node stands there once for each of its
/// partitions and is returned once. Lines of another form are left out.
std::vector<SlurmNode> parseSinfo(const std::string& text);

/// Orders given on Slurm's behalf and not taken back, without those of operators.
struct SlurmOrders {
    std::set<std::string> cordoned;
    std::set<int32_t> drained;
    std::set<std::string> replaced;  ///< lost nodes for which another was asked for
    bool operator==(const SlurmOrders&) const = default;
};

/// Text with a line for each; parse() leaves out what it cannot read.
std::string ordersText(const SlurmOrders& orders);
SlurmOrders parseOrders(const std::string& text);

struct SlurmOrder {
    model::Action action;
    std::string by;  ///< its author in events: "slurm: n2 is draining (bad DIMM)"
};

/// The replica has a process on the node and may be asked to leave.
bool runsOn(const model::RunState& job, const model::ReplicaView& replica, const std::string& node);

/// The orders that bring the job to what Slurm says now: a withdrawn node is cordoned, and
/// uncordoned when it is usable again; replicas on a node that is drained leave it, one after
/// another, and may start elsewhere once they have. `given` are those that were carried out.
std::vector<SlurmOrder> ordersFor(const std::vector<SlurmNode>& nodes, const model::RunState& job,
                                  const SlurmOrders& given);

/// Nodes that both Slurm and the job have lost and for which nothing was asked yet.
std::vector<std::string> nodesToReplace(const std::vector<SlurmNode>& nodes,
                                        const model::RunState& job, const SlurmOrders& given);

/// `given` without what the job has overtaken: lost nodes that are back, replicas that run again
/// on a node that is not withdrawn.
SlurmOrders settled(const std::vector<SlurmNode>& nodes, const model::RunState& job,
                    SlurmOrders given);

/// Notes an order that was carried out.
void note(SlurmOrders& given, const model::Action& action);

}  // namespace bulkhead::cli
