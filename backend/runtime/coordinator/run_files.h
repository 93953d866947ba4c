// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/file_system.h"
#include "backend/model/job_spec.h"
#include "backend/model/ledger_audit.h"
#include "backend/model/run_state.h"
#include "backend/runtime/protocol/commit_log.h"

/// The state directory: one folder per run with job.json, commit.log, checkpoints/, and text/
/// where the training text was copied. A folder is a run's if it has a job.json, or entries in a
/// commit.log.
namespace bulkhead::runtime {

/// "demo-20261121-121530": the job's name, what of it a folder can carry, and the time (UTC).
std::string makeRunId(const std::string& name, int64_t unixNs);

/// Held by whoever runs the job; it goes with the object or the process. FailedPrecondition when
/// another coordinator holds it.
absl::StatusOr<std::unique_ptr<FileLock>> lockRun(FileSystem& files, const std::string& runDir);
/// The file by which lockCheckpoints() locks them.
std::string checkpointLock(const std::string& checkpointDir);
/// Likewise of the folder that its checkpoints go to, which is made if it is not there: it may be
/// reached from the copy of a state directory or by another path, and two runs that write there
/// would remove each other's files. So the lock lies in it.
absl::StatusOr<std::unique_ptr<FileLock>> lockCheckpoints(FileSystem& files,
                                                          const std::string& checkpointDir);

/// The folder of a run's checkpoints in the `checkpoint_dir` of its job: a folder of its own, since
/// runs that share one would take each other's checkpoints for theirs.
std::string checkpointsBelow(const std::string& checkpointDir, const std::string& run);
/// Makes this folder for a run that begins. InvalidArgument when it cannot be made or written, or
/// when something other than a lock lies in it; ResourceExhausted when the disk is full.
absl::Status claimCheckpoints(FileSystem& files, const std::string& folder);

/// InvalidArgument unless it is a plain folder name.
absl::Status checkRunId(const std::string& run);

/// The identity of the run in this folder: 32 hexadecimal digits that no other run has, made when
/// it began. Empty where an older build made the run, or the file is lost: then the log's counts.
std::string runIdentity(const FileSystem& files, const std::string& runDir);
absl::Status writeIdentity(FileSystem& files, const std::string& runDir, const std::string& id);

/// Its commit log does not say that it ended, is another run's, or cannot be read: taking it up
/// will say what is wrong.
bool isUnfinished(const FileSystem& files, const std::string& runDir);
/// A run whose commit log cannot be read goes on as the run `by`: its log is kept as
/// commit.log.damaged, and it counts as ended.
absl::Status setAside(FileSystem& files, const std::string& runDir, const std::string& by);
/// The run that goes on from one that was set aside; empty: none does.
std::string supersededBy(const FileSystem& files, const std::string& runDir);
/// Says that in a sentence.
std::string supersededText(const std::string& by);
/// FailedPrecondition for a run that was set aside and whose log somebody has put back.
absl::Status checkNotSetAside(const FileSystem& files, const std::string& runDir);
/// The folder is a run's, if only by its checkpoints.
bool isRun(const FileSystem& files, const std::string& runDir);
std::vector<std::string> unfinishedRuns(const FileSystem& files, const std::string& stateDir);

/// The last step that the run's commit log has, whole or damaged, and that of its last checkpoint;
/// 0: it has none.
std::pair<uint64_t, uint64_t> newestLogged(const FileSystem& files, const std::string& runDir);

/// The job of a run as its job.json says, with the paths as they are now (atHome). If that file
/// cannot be used, the job that one of the run's checkpoint manifests names, and a warning in the
/// log. DataLoss if no manifest has it either: what is wrong with job.json, and what to do.
absl::StatusOr<model::JobSpec> readSpec(const FileSystem& files, const std::string& runDir);

/// FailedPrecondition if `spec`, the run's job.json, differs from the job of the run's newest
/// checkpoint: job.json is written once, and was edited since. Names each key with both values.
absl::Status checkUnedited(const FileSystem& files, const std::string& runDir,
                           const model::JobSpec& spec);
/// Likewise from what the run's history says that it began with: there may be no checkpoint yet.
absl::Status checkUnedited(const FileSystem& files, const std::string& runDir,
                           const model::JobSpec& spec, const model::RunState& past);

/// The state directory of a run may have been moved or the run renamed since `entries` were logged:
/// what lay in the run's folder, or in one beside it, is looked for where it lies now. A path that
/// leads to the original of a copied folder stays as it is.
std::vector<protocol::LogEntry> atHome(const FileSystem& files, const std::string& runDir,
                                       std::vector<protocol::LogEntry> entries);

/// DataLoss when whole checkpoints in the run's folder prove that `entries`, its commit log, or
/// `id`, which it goes by, are another run's, or, unless history `knows` more of the run, that they
/// have lost their end: then nobody would notice that the run begins anew. Names the newest of them
/// and how to go on. Of checkpoints that are not whole the folder's name says as much; another
/// run's beside this one's prove nothing.
absl::Status checkLog(const FileSystem& files, const std::string& runDir,
                      const model::JobSpec& spec, const std::vector<protocol::LogEntry>& entries,
                      const protocol::RecoveredState& recovered, const std::string& id, bool knows);

/// Unavailable when the newest of the `logged` checkpoints does not lie whole in its place, nor a
/// later one of the run: their folder was moved, is not mounted, or is on its way back. Once
/// nothing has changed there for long (`settled`), an earlier one is enough. Says what to do.
/// `entries` are the run's commit log; what is in the files is not looked at.
absl::Status checkInPlace(const FileSystem& files, const std::string& runDir,
                          const model::JobSpec& spec,
                          const std::vector<protocol::LogEntry>& entries,
                          const std::vector<protocol::LogCheckpoint>& logged, bool settled);

/// The entries of a run's commit log as it is on disk (atHome). Errors of the file, or as
/// protocol::decodeLog().
absl::StatusOr<std::vector<protocol::LogEntry>> readLog(const FileSystem& files,
                                                        const std::string& runDir);

/// The steps of a run's commit log in its order, with the links of the ledger's chain. Errors as
/// readLog; NotFound: there is no log. DataLoss when it is empty or another run's,
/// ends before the run's newest checkpoint, or its own chain does not hold.
absl::StatusOr<std::vector<model::LogLink>> logLinks(const FileSystem& files,
                                                     const std::string& runDir);

/// The checkpoints on disk that hold a step of the run's line of descent, whether or not its log
/// names them (protocol::judgeStored).
absl::StatusOr<std::vector<protocol::LogCheckpoint>> checkpointsOnDisk(const FileSystem& files,
                                                                       const std::string& runDir,
                                                                       const model::JobSpec& spec);

struct FoundCheckpoint {
    model::JobSpec spec;  ///< of the run that wrote it
    protocol::LogCheckpoint checkpoint;
};

/// The last checkpoint of the run `from`, or the one whose manifest is at the path `from`: of those
/// that a run of this state directory has logged, or that its ranks wrote when they had no
/// coordinator; of a damaged log what is whole counts, and what the run gave up while it was away.
/// A run's manifests `without` are not looked at. NotFound says where it looked.
absl::StatusOr<FoundCheckpoint> findCheckpoint(const FileSystem& files, const std::string& stateDir,
                                               const std::string& from,
                                               const std::vector<std::string>& without = {});

/// InvalidArgument unless a job of `spec` can go on from what was found at `from`.
absl::Status checkFits(const std::string& from, const FoundCheckpoint& found,
                       const model::JobSpec& spec);

/// FailedPrecondition naming the first file of the checkpoint `manifest` that is not what the
/// manifest says, and what is wrong with it. Reads every state: not for the reactor's thread.
absl::Status checkStates(const FileSystem& files, const std::string& manifest);

/// The text that a job of `spec` reads when it goes on from one of `earlier`: the copy that was
/// made of that one's, if the domains are the same.
std::vector<model::DomainSpec> textOf(const model::JobSpec& spec, const model::JobSpec& earlier);

/// Copies the job's training text into the run's folder and makes the job read it there, when it is
/// no larger than the job's data_copy_bytes. `earlier`, when given, is the job that is resumed
/// (textOf). Errors as model::copyDomains. Reads and writes up to data_copy_bytes: not for the
/// reactor's thread.
absl::Status takeText(model::JobSpec& spec, const std::string& runDir,
                      const model::JobSpec* earlier);

/// FailedPrecondition as checkSameText() unless the text that `spec` reads is the one that the
/// checkpoint `manifest` was trained on. Passed over if the manifest cannot be read here, or the
/// text is larger than what is copied by default, or is a command's own: each rank compares too.
/// Reads all of it: not for the reactor's thread.
absl::Status checkText(const FileSystem& files, const model::JobSpec& spec,
                       const std::string& manifest);

/// Hash of the text that the newest of these checkpoints was trained on; 0: none can be read.
uint64_t corpusHashOf(const FileSystem& files,
                      const std::vector<protocol::LogCheckpoint>& checkpoints);

}  // namespace bulkhead::runtime
