// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/file_system.h"
#include "backend/model/command.h"
#include "backend/model/run_state.h"
#include "backend/runtime/coordinator/agent_pool.h"
#include "backend/runtime/coordinator/job_status.h"

namespace bulkhead::runtime {

/// An operator's order to a job.
struct JobOrder {
    model::Action action;
    std::string requestId;
    std::string by;
};

/// A run that is tried again until its files can be used.
struct WaitingRun {
    JobStatus status;
    model::RunState past;  ///< as history told it
    std::string id;        ///< identity of the run in the folder of which history told `past`
    std::optional<JobOrder> order = {};  ///< carried out when its files can be used
    std::string waits = {};              ///< reason why the order waits, if there is one
    bool askedAgain = false;             ///< history, once more
};

/// The runs of a state directory that could not be taken up. Some wait until their files can be
/// used; the others are left alone until somebody mends them or another run goes on from one of
/// their checkpoints. Tells and decides nothing else: who tries them again is the controller.
/// Thread: the controller's.
class RefusedRuns {
  public:
    /// `files` and `pool` outlive it.
    RefusedRuns(FileSystem& files, std::string stateDir, AgentPool& pool)
        : files_(files), stateDir_(std::move(stateDir)), pool_(pool) {}

    /// It is not tried again. Aborted and Unauthenticated: nothing is wrong with the run itself.
    void refuse(JobStatus status, const absl::Status& cause);
    void await(JobStatus status, model::RunState past, std::string why);

    /// Null: it does not wait.
    const WaitingRun* waiting(const std::string& run) const;
    /// Takes a run that waits, to try it; nullopt when none of that name waits any more.
    std::optional<WaitingRun> take(const std::string& run);
    /// It still waits.
    void putBack(WaitingRun run);
    /// A run that waits, whose folder is gone, is waited for no longer.
    void giveUp(const std::string& run);

    /// The status of a run that could not be taken up, with what of it runs nevertheless, or of one
    /// that was given up.
    std::optional<JobStatus> status(const std::string& run) const;
    /// The status of each, but not of those that were given up.
    std::vector<JobStatus> list() const;
    /// OK unless the run could not be taken up: ResourceExhausted while it waits, else
    /// FailedPrecondition.
    absl::Status why(const std::string& run) const;

    /// The last rank of the run may have ended, and written a checkpoint.
    void rankEnded(const std::string& run);
    /// FailedPrecondition while resuming from `from` would give up what ranks of the run hold.
    absl::Status checkLeft(const std::string& from) const;
    /// Forgets the run that another goes on from, which begins from `from`; nullopt: none does.
    std::optional<std::string> supersede(const std::string& from);

    /// nullopt: the job's coordinator, or the lack of one, has to answer.
    std::optional<absl::StatusOr<model::Preflight>> preflight(const std::string& run,
                                                              const model::Action& action) const;
    /// An order stands in the log before it is acknowledged, and there is no room for it: it is
    /// kept for a run that waits until there is, or until this controller ends. Nothing trains
    /// meanwhile. Without a checkpoint there is nothing to wait for: the ranks end now, and only
    /// the word that the job ended waits.
    absl::Status keep(const std::string& run, JobOrder order);
    /// Has the ranks of a run that does not wait end, with a checkpoint if the order says so, as
    /// they do without a coordinator. False: that is not what the order says, or there are none.
    bool endRanks(const std::string& run, const model::Action& order);

  private:
    struct Refused {
        JobStatus status;
        absl::Status cause;
        std::string left = {};  ///< from what another run can go on
    };

    /// Nothing is wrong with the run, and it goes on when the controller has its secret again, or
    /// the folder or history that was there.
    static bool keepsItsRun(const Refused& refused);
    static bool isFrom(const JobStatus& status, const std::string& from);
    void seeWhatIsLeft(Refused& refused) const;
    JobStatus told(const Refused& refused) const;

    FileSystem& files_;
    const std::string stateDir_;
    AgentPool& pool_;
    std::map<std::string, WaitingRun> waiting_;
    std::map<std::string, Refused> refused_;
    std::map<std::string, JobStatus> givenUp_;
};

}  // namespace bulkhead::runtime
