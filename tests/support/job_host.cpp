// SPDX-License-Identifier: Apache-2.0
#include "tests/support/job_host.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "backend/runtime/agent/process.h"
#include "backend/runtime/agent/rank_registry.h"

namespace bulkhead::support {
namespace fs = std::filesystem;
JobHost::JobHost(JobHostOptions options) : options_(std::move(options)), dir_(options_.dir) {
    if (dir_.empty()) {
        char name[] = "/tmp/bulkhead-job-XXXXXX";
        dir_ = ::mkdtemp(name);
    }
    if (options_.withController) startController();
    for (uint32_t n = 0; ready_.ok() && n < options_.nodes; ++n) startAgent(n);
}

JobHost::~JobHost() {
    killEverything();
    if (!options_.dir.empty()) return;
    std::error_code error;
    fs::remove_all(dir_, error);
}

std::string JobHost::program(const std::string& name) {
    if (const char* folder = ::getenv("BULKHEAD_BIN_DIR")) return std::string(folder) + "/" + name;
    const fs::path self = fs::read_symlink("/proc/self/exe");
    for (const char* folder : {"../bin", "."})
        if (fs::exists(self.parent_path() / folder / name))
            return (self.parent_path() / folder / name).lexically_normal().string();
    return name;
}

void JobHost::startController() {
    runtime::ControllerOptions o;
    o.stateDir = dir_ + "/state";
    o.listen = {socket()};
    o.token = kToken;
    o.workerPath = program(options_.worker);
    o.version = "test";
    o.proposer = options_.proposer;
    o.agentHeartbeat = options_.agentHeartbeat;
    auto controller = runtime::Controller::create(std::move(o), clock_, &tape_);
    ready_ = controller.status();
    if (ready_.ok()) controller_ = *std::move(controller);
}

void JobHost::startAgent(uint32_t node) {
    const std::string name = nodeName(node);
    runtime::LaunchSpec spec;
    spec.argv = {program("bulkhead-test-agent"),
                 name,
                 "127.0.0." + std::to_string(node + 1),
                 std::to_string(options_.slotsPerNode),
                 socket(),
                 kToken,
                 dir_ + "/" + name,
                 options_.gpus == "parts"
                     ? std::to_string(node + 1) + "/" + std::to_string(options_.nodes)
                     : options_.gpus};
    auto pid = runtime::launch(spec);
    if (pid.ok())
        agents_[node] = *pid;
    else
        ready_ = pid.status();
}

void JobHost::killAgent(uint32_t node) {
    const auto it = agents_.find(node);
    if (it == agents_.end()) return;
    ::kill(it->second, SIGKILL);
    ::waitpid(it->second, nullptr, 0);
    agents_.erase(it);
}

void JobHost::killRanks() {
    // By what the agents noted of them, so that nothing else is ever hit.
    for (uint32_t n = 0; n < options_.nodes; ++n) {
        auto registry = runtime::RankRegistry::open(diskFiles(), dir_ + "/" + nodeName(n));
        if (!registry.ok()) continue;
        for (const runtime::RegisteredRank& rank : registry->load())
            if (runtime::processStartTime(rank.pid) == rank.startTime) ::kill(rank.pid, SIGKILL);
    }
}

void JobHost::killEverything() {
    controller_.reset();
    while (!agents_.empty()) killAgent(agents_.begin()->first);
    killRanks();
}

absl::StatusOr<std::vector<std::string>> JobHost::comeBack(
    const std::function<void()>& beforeRecovery, const std::vector<std::string>& withoutEnd) {
    startController();
    if (!ready_.ok()) return ready_;
    if (beforeRecovery) beforeRecovery();
    const auto past = [this](const std::string& run) {
        ++historyAsked_;
        return tape_.state(run);
    };
    auto runs = controller_->recover(past, withoutEnd);
    for (uint32_t n = 0; n < options_.nodes; ++n)
        if (!agents_.contains(n)) startAgent(n);
    return runs;
}

model::JobSpec JobHost::tinySpec(uint32_t replicas, uint32_t shards, uint64_t steps) {
    model::JobSpec spec;
    spec.name = "test";
    spec.replicas = replicas;
    spec.shards = shards;
    spec.steps = steps;
    spec.allowFaults = true;
    spec.modelToml =
        "dim = 32\nlayers = 4\nheads = 4\nkv_heads = 2\nattention_chunk = 32\nffn_hidden = 64\n"
        "experts = 4\nexpert_hidden = 32\nshared_hidden = 32\n";
    spec.sequenceLength = 64;
    spec.samplesPerReplica = 2 * shards;
    spec.optimizer.warmupSteps = 5;
    spec.policies.checkpointEverySteps = 10;
    for (const char* domain : {"verse", "numbers"}) {
        const std::string path = dir_ + "/" + domain + ".txt";
        std::ofstream text(path, std::ios::trunc);
        for (int i = 0; i < 4000; ++i)
            text << domain << " line " << i << " of a text that repeats itself and so on\n";
        spec.domains.push_back({domain, {path}});
    }
    if (options_.nodes > 1)
        for (uint32_t n = 0; n < options_.nodes; ++n) {
            model::NodePlacement placement{nodeName(n), {}};
            for (uint32_t r = n; r < replicas; r += options_.nodes)
                placement.replicas.push_back(static_cast<int32_t>(r));
            spec.placement.push_back(std::move(placement));
        }
    return spec;
}

}  // namespace bulkhead::support
