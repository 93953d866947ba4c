// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

/// A controller and agents as a user starts them, each a process of its own, and what can be done
/// to them from outside. Thread: one.
namespace bulkhead::bench {

struct FleetOptions {
    std::string programs;  ///< folder of bulkheadd and bulkheadctl, absolute
    std::string dir;       ///< of this run: state, logs; absolute, empty
    uint32_t agents = 2;
    bool loopback = false;  ///< no network namespaces, even where they can be had
};

struct Ran {
    int code = -1;  ///< exit code, or 128 + signal
    std::string out;
};
/// Runs a shell command to its end; standard output, standard error to nowhere.
Ran shell(const std::string& command);

class Fleet {
  public:
    explicit Fleet(FleetOptions options);
    ~Fleet() { end(); }
    /// Kills what it started, takes down namespaces and mounts; files stay.
    void end();

    /// Networks, disks and clocks, then the processes.
    absl::Status start();

    // ---- what can be done here; each says in words why when it cannot
    const std::string& network() const { return network_; }
    const std::string& disks() const { return disks_; }
    const std::string& clocks() const { return clocks_; }
    bool canCut() const { return !networks_.empty(); }
    bool canFill() const { return mounted_.size() == 2; }
    bool canJump() const { return !faketime_.empty(); }

    /// 0 is the controller, 1... are the agents.
    static constexpr uint32_t kController = 0;
    uint32_t members() const { return options_.agents + 1; }
    std::string name(uint32_t member) const;
    bool runs(uint32_t member);
    /// 0: it does not run.
    pid_t pid(uint32_t member) { return runs(member) ? pids_[member] : 0; }
    void startMember(uint32_t member);
    void signalMember(uint32_t member, int signal);
    /// Pids of the ranks that live on an agent, started by this or an earlier life of it.
    std::vector<pid_t> workers(uint32_t member) const;

    void cut(uint32_t member, bool cut);  ///< its link to all others
    /// `checkpoints`: the disk of the checkpoints, else that of the history.
    void fill(bool checkpoints, bool full);
    void jump(uint32_t member, int64_t seconds);  ///< its wall clock, off the true one

    /// bulkheadctl with these arguments, upon the controller's socket.
    Ran ctl(const std::string& arguments) const;
    std::string history() const { return options_.dir + "/history/runs.db"; }
    std::string checkpoints() const { return options_.dir + "/checkpoints"; }
    std::string jobs() const { return options_.dir + "/state/jobs"; }
    /// Reports of sanitizers and last words of crashes; empty: none.
    std::string complaints() const;

  private:
    std::string address(uint32_t member) const;
    std::string clockFile(uint32_t member) const;
    void makeNetworks();
    void makeDisks();
    void findFaketime();
    void killAll();

    FleetOptions options_;
    std::string tag_;  ///< in the environment of all that it starts, and of what these start
    uint16_t port_ = 0;
    std::map<uint32_t, pid_t> pids_;
    std::vector<std::string> networks_;  ///< by member
    std::vector<std::string> mounted_;
    std::string faketime_;  ///< LD_PRELOAD
    std::string network_;
    std::string disks_;
    std::string clocks_;
};

}  // namespace bulkhead::bench
