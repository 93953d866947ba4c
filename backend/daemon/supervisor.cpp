// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend/daemon/programs.h"
#include "backend/daemon/roles.h"
#include "backend/daemon/signals.h"
#include "backend/runtime/agent/rank_registry.h"

namespace bulkhead::daemon {
namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{200};
constexpr milliseconds kLongestWait{5000};
constexpr milliseconds kHealthyAfter{30000};  ///< lived so long: the next wait is the first again
constexpr std::chrono::seconds kControllerLimit{60};
constexpr std::chrono::seconds kAgentLimit{5};

struct Child {
    std::string what;
    std::vector<std::string> args;
    pid_t pid = -1;
    Steady::time_point started;
    Steady::time_point startAgain;
    milliseconds wait = kFirstWait;
};

class Supervisor {
  public:
    explicit Supervisor(const Options& options)
        : options_(options), signals_({SIGTERM, SIGINT, SIGHUP, SIGCHLD}) {}

    int run();

  private:
    void plan();
    void start(Child& child);
    /// Notes who died; returns the controller's exit code when it could not even start.
    int reap();
    void startDue();
    int nextDueMs() const;
    int stop();
    bool awaitEnd(Child& child, std::chrono::seconds limit);
    Child& controller() { return children_.front(); }

    const Options& options_;
    Signals signals_;
    std::vector<Child> children_;
    int controllerCode_ = kOk;
};

void Supervisor::plan() {
    const Options& o = options_;
    std::vector<std::string> common{ourPath(),         "--supervised", "--state-dir", o.stateDir,
                                    "--control-token", o.controlToken, "--allow",     o.allow,
                                    "--log-format",    o.logFormat};
    if (!o.worker.empty()) common.insert(common.end(), {"--worker", o.worker});
    Child controller;
    controller.what = "controller";
    controller.args = common;
    auto& args = controller.args;
    args.insert(args.end(),
                {"--role=controller", "--socket", o.socket, "--db", o.db, "--on-term", o.onTerm});
    for (const std::string& address : o.listen) args.insert(args.end(), {"--listen", address});
    for (const std::string& address : o.controlListen)
        args.insert(args.end(), {"--control-listen", address});
    if (o.historyKeep > 0)
        args.insert(args.end(), {"--history-keep", std::to_string(o.historyKeep)});
    if (!o.tokenFile.empty()) args.insert(args.end(), {"--token-file", o.tokenFile});
    args.insert(args.end(), {"--access", o.access});
    if (!o.certs.empty()) args.insert(args.end(), {"--certs", o.certs});
    if (o.insecure) args.push_back("--insecure");
    if (o.isPrivate) args.push_back("--private");
    children_.push_back(std::move(controller));
    for (uint32_t i = 0; i < o.agents; ++i) {
        Child agent;
        agent.what = "agent node" + std::to_string(i);
        agent.args = common;
        // Every node its own loopback address, so that losing one is tried for real.
        agent.args.insert(
            agent.args.end(),
            {"--role=agent", "--node", "node" + std::to_string(i), "--address",
             "127.0.0." + std::to_string(i + 1), "--controller", o.controllers.front(), "--slots",
             std::to_string(o.slots), "--gpus",
             o.gpus == "all" ? std::to_string(i + 1) + "/" + std::to_string(o.agents) : o.gpus});
        for (const std::string& name : o.inherit)
            agent.args.insert(agent.args.end(), {"--inherit", name});
        children_.push_back(std::move(agent));
    }
}

void Supervisor::start(Child& child) {
    std::vector<char*> argv;
    for (const std::string& arg : child.args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    const pid_t us = ::getpid();
    child.started = Steady::now();
    child.pid = ::fork();
    if (child.pid == 0) {
        // Without us nobody restarts it; ranks outlive it and are adopted by the next daemon.
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != us) ::_exit(kFailed);
        ::execv(argv[0], argv.data());
        ::_exit(kBadStart);
    }
    if (&child == &controller()) noteHolders(options_, {child.pid});
}

int Supervisor::reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
        const auto it = std::find_if(children_.begin(), children_.end(),
                                     [pid](const Child& child) { return child.pid == pid; });
        if (it == children_.end()) continue;
        it->pid = -1;
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
        if (&*it == &controller()) controllerCode_ = code;
        // It has said why; starting it again would not help.
        if (&*it == &controller() && code == kBadStart) return kBadStart;
        if (Steady::now() - it->started > kHealthyAfter) it->wait = kFirstWait;
        it->startAgain = Steady::now() + it->wait;
        it->wait = std::min(it->wait * 2, kLongestWait);
        if (WIFSIGNALED(status))
            spdlog::error("{} died of signal {}; it is started again", it->what, WTERMSIG(status));
        else
            spdlog::error("{} ended with code {}; it is started again", it->what, code);
    }
    return kOk;
}

void Supervisor::startDue() {
    for (Child& child : children_)
        if (child.pid < 0 && Steady::now() >= child.startAgain) start(child);
}

int Supervisor::nextDueMs() const {
    int ms = -1;
    for (const Child& child : children_) {
        if (child.pid >= 0) continue;
        const auto left =
            std::chrono::duration_cast<milliseconds>(child.startAgain - Steady::now()).count();
        const int due = static_cast<int>(std::max<int64_t>(left, 0)) + 1;
        ms = ms < 0 ? due : std::min(ms, due);
    }
    return ms;
}

bool Supervisor::awaitEnd(Child& child, std::chrono::seconds limit) {
    const auto until = Steady::now() + limit;
    while (child.pid > 0) {
        int status = 0;
        if (::waitpid(child.pid, &status, WNOHANG) == child.pid) {
            child.pid = -1;
            if (&child == &controller())
                controllerCode_ = WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
            return true;
        }
        const auto left = std::chrono::duration_cast<milliseconds>(until - Steady::now()).count();
        if (left <= 0) break;
        // Asked twice: pass it on; a controller that waits for its jobs then ends at once.
        const int signal = signals_.next(static_cast<int>(std::min<int64_t>(left, 200)));
        if (signal == SIGTERM || signal == SIGINT) ::kill(child.pid, SIGTERM);
    }
    if (child.pid <= 0) return true;
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    child.pid = -1;
    return false;
}

int Supervisor::stop() {
    noteEnding(options_);
    controllerCode_ = kOk;
    // The controller first: jobs need their agents to end well.
    if (controller().pid > 0) ::kill(controller().pid, SIGTERM);
    if (!awaitEnd(controller(), kControllerLimit)) controllerCode_ = kFailed;
    for (size_t i = 1; i < children_.size(); ++i)
        if (children_[i].pid > 0) ::kill(children_[i].pid, SIGTERM);
    for (size_t i = 1; i < children_.size(); ++i) awaitEnd(children_[i], kAgentLimit);
    return controllerCode_;
}

int Supervisor::run() {
    plan();
    // The first controller starts the job and says how it went; later ones take jobs up again.
    const std::vector<std::string> plain = controller().args;
    if (!options_.job.empty())
        controller().args.insert(controller().args.end(), {"--job", options_.job});
    if (options_.readyFd >= 0)
        controller().args.insert(controller().args.end(),
                                 {"--ready-fd", std::to_string(options_.readyFd)});
    start(controller());
    controller().args = plain;
    if (options_.readyFd >= 0) ::close(options_.readyFd);
    for (size_t i = 1; i < children_.size(); ++i) start(children_[i]);
    for (;;) {
        const int signal = signals_.next(nextDueMs());
        if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) return stop();
        if (signal == SIGCHLD && reap() == kBadStart) {
            stop();
            return kBadStart;
        }
        startDue();
    }
}

}  // namespace

int supervise(const Options& options, Report report) {
    if (absl::Status status = claimStateDir(options); !status.ok()) return report.failed(status);
    // Before its children look for it.
    if (const auto secret = controllerSecret(options); !secret.ok())
        return report.failed(secret.status());
    // An agent that cannot use its folder would be started again for ever. One that holds it still,
    // from the daemon before, is about to end.
    for (uint32_t i = 0; i < options.agents; ++i) {
        const auto folder = runtime::RankRegistry::open(
            diskFiles(), options.stateDir + "/agents/node" + std::to_string(i));
        if (!folder.ok() && !absl::IsFailedPrecondition(folder.status()))
            return report.failed(folder.status());
    }
    return Supervisor(options).run();
}

}  // namespace bulkhead::daemon
