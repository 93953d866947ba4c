// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/client/failure.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace bulkhead::cli {

/// Exit codes of the process; documented in --help and stable.
enum ExitCode {
    kOk = 0,
    kRunFailed = 1,    ///< the job or campaign ended badly, or a ledger does not add up
    kUsage = 2,        ///< the command line itself
    kUnreachable = 3,  ///< no daemon, or it did not answer
    kRefused = 4,      ///< not allowed now, stale, or not confirmed
    kNotFound = 5,
    kInvalid = 6,  ///< a job file, run file or argument that cannot be used
    kToken = 7,    ///< token or version
    kInterrupted = 130,
};

/// Options shared by all verbs, and the chosen verb.
struct Cli {
    std::string target;  ///< unix:/path or host:port; default: this user's own daemon
    std::string tokenFile;
    std::string certs;      ///< folder of certificates, for a daemon on TCP with TLS
    bool insecure = false;  ///< send the token without TLS
    std::string jobsDir;    ///< with `file`: where its runs have their folders; empty: as bulkheadd
    std::string file;       ///< a run file, read through a private daemon instead of `target`
    bool json = false;
    std::vector<std::string> command;  ///< what stands behind "--": a program and its arguments
    std::function<int()> chosen;
};

ExitCode exitCodeOf(client::FailureCode code);

using client::localFailure;

/// The state folder of this user's own daemon, as bulkheadd has it.
std::string defaultStateDir();

/// A number from `least` to `most`; CLI11's own lets "nan" pass, as no comparison with it is true.
CLI::Validator within(double least, double most);
/// A number above 0 that is not infinite.
CLI::Validator positive();
/// A whole number from 0 to 2^64 - 1: the library takes -1 for the largest, and larger ones too.
CLI::Validator seedNumber();
/// Makes "r2" of a replica 2.
CLI::Validator replicaNumber();
/// A name that a node can have.
CLI::Validator nodeName();

/// "bulkheadctl: TITLE: CAUSE / REMEDY" on stderr, with --json one JSON object; returns the exit
/// code.
int fail(const Cli& cli, const client::Failure& failure);

/// The verbs below `checkpoint` that work on files.
void addCheckpointFiles(CLI::App& checkpoint, Cli& cli);

// One for each group of verbs: adds them to the program.
void addUp(CLI::App& app, Cli& cli);
void addJobs(CLI::App& app, Cli& cli);
void addNodes(CLI::App& app, Cli& cli);
void addActions(CLI::App& app, Cli& cli);
void addFaults(CLI::App& app, Cli& cli);
void addCampaigns(CLI::App& app, Cli& cli);
void addRuns(CLI::App& app, Cli& cli);
void addIncidents(CLI::App& app, Cli& cli);
void addCompare(CLI::App& app, Cli& cli);
void addReplay(CLI::App& app, Cli& cli);
void addPlan(CLI::App& app, Cli& cli);
void addAccess(CLI::App& app, Cli& cli);
void addMetrics(CLI::App& app, Cli& cli);
void addSlurm(CLI::App& app, Cli& cli);
void addCompletion(CLI::App& app, Cli& cli);

/// Parses and runs; the whole program but for main().
int run(int argc, const char* const* argv);

}  // namespace bulkhead::cli
