// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

/// Batch scripts that run Bulkhead under Slurm. Pure; thread: any.
namespace bulkhead::cli {

struct SlurmScript {
    std::string name;       ///< of the Slurm job
    std::string bin;        ///< folder of bulkheadd and bulkheadctl, the same on every node
    std::string folder;     ///< state of the job, on storage that every node sees
    uint32_t nodes = 1;     ///< whole ones, unless `directives` say otherwise
    std::string time;       ///< limit, as sbatch reads it; empty: the partition's
    std::string partition;  ///< empty: Slurm's default
    std::vector<std::string> directives;  ///< further options of sbatch, "--account=ml"
    std::string address = "%N";       ///< where ranks of other nodes reach a node; %N is its name
    std::string slots;                ///< ranks a node runs at most; empty: its GPUs, else its CPUs
    uint32_t checkpointBefore = 300;  ///< seconds before the time limit in which the job is stopped
    bool untilDone = false;           ///< after the time limit it is queued again and goes on
    uint16_t port = 0;                ///< of the controller; 0: from the number of the Slurm job
    std::string controller;           ///< agents alone, for this running controller, HOST:PORT
    std::string keys;                 ///< with `controller`: folder with NODE.key for each node
    std::vector<std::string> job;     ///< words of `slurm follow`: job file and changes to it
};

/// The file in `folder` with the script of a node that takes the place of a lost one.
inline constexpr const char* kSpareScript = "spare.sbatch";

/// InvalidArgument, naming the value, if one cannot stand in a script as it is.
absl::Status checkScript(const SlurmScript& script);

/// Controller on the first node, an agent on every node, `slurm follow` for job and nodes. What
/// was cut off before goes on. SIGUSR1 stops the job with a checkpoint.
std::string jobScript(const SlurmScript& script);

/// Agents alone, for the controller that is the script's argument, else `script.controller`.
std::string agentsScript(const SlurmScript& script);

/// `word` as the shell reads it back.
std::string shellQuoted(const std::string& word);

}  // namespace bulkhead::cli
