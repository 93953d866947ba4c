// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/daemon/options.h"
#include "backend/daemon/report.h"
#include "backend/service/run_library.h"

/// One function for each thing the program can be; each returns the exit code.
namespace bulkhead::daemon {

/// Serves a run file, read-only (--run).
int serveRun(const Options& options, Report report);
/// Jobs and their services.
int runController(const Options& options, Report report);
/// The ranks of one node.
int runAgent(const Options& options, Report report);
/// Prints the key of --print-agent-key's node.
int printAgentKey(const Options& options, Report report);
/// Starts a controller and agents as processes of this program, and either again when it dies.
int supervise(const Options& options, Report report);

/// Makes the state directory (0700) and takes its lock, held until the process ends: two daemons
/// on one state would both believe its jobs theirs. Controllers that agree by etcd who of them
/// leads hold it together. AlreadyExists when another holds it. Waits for the processes of a daemon
/// that was killed or is told to end, up to 10 s: until they have ended they have its sockets and
/// files.
absl::Status claimStateDir(const Options& options);
/// Notes in the lock that this process and `others`, its children, are what the next daemon waits
/// for.
void noteHolders(const Options& options, const std::vector<int32_t>& others);
/// Notes in the lock that this process is told to end.
void noteEnding(const Options& options);

/// The secret of `options.controlToken`, made when it is not there. FailedPrecondition when it is
/// gone or another than before while runs have not ended: ranks that live know the old one.
/// `control.id` in the state directory tells the one before.
absl::StatusOr<std::string> controllerSecret(const Options& options);

/// Tells one controller's secret from another and nothing else of it.
std::string secretId(const std::string& secret);

/// Reads what the folders of the runs below `jobs` say of them.
service::RunFolders runFolders(const std::string& jobs);

}  // namespace bulkhead::daemon
