// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/supervisor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backend/model/gpu_text.h"
#include "backend/model/program_files.h"
#include "backend/runtime/protocol/messages.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {
namespace {

/// A warning of another thread may come after the critical line.
void keepWords(const std::string& line, LastWords& last) {
    if (std::string words = criticalWords(line); !words.empty())
        last = {std::move(words), true};
    else if (!last.critical && !isInformation(line))
        last.text = line;
}

}  // namespace

Supervisor::Supervisor(const AgentOptions& options, RankRegistry registry, Reactor& reactor,
                       Host& host, Emit emit)
    : options_(options),
      registry_(std::move(registry)),
      reactor_(reactor),
      host_(host),
      emit_(std::move(emit)),
      allGpus_(host.gpus()) {
    sample();
}

Supervisor::~Supervisor() {
    reactor_.cancel(sampling_);
    for (auto& [key, fault] : faults_) reactor_.cancel(fault.timer);
}

void Supervisor::adopt() {
    for (const RegisteredRank& known : registry_.load()) {
        auto found = host_.find(known, registry_.path(known.process), watcher(known.process));
        if (found.ok()) {
            Process& process = processes_[known.process];
            process.handle = *std::move(found);
            process.gpu = known.gpu;
            if (known.gpu.uuid.empty()) continue;
            if (auto claim = host_.claim(known.gpu); claim.ok()) process.claim = *std::move(claim);
        } else {
            registry_.remove(known.process);
            if (known.pid == 0) continue;  // the agent before had not come to start it
            emit_(RankGone{known.process, known.pid, 0, 0, false, reactor_.clock().unixNs(), 0});
        }
    }
}

std::vector<RunningRank> Supervisor::running() const {
    std::vector<RunningRank> all;
    for (const auto& [id, process] : processes_)
        all.push_back({id, process.handle->pid(), process.gpu});
    return all;
}

std::vector<std::string> Supervisor::gpus() const {
    std::vector<std::string> uuids;
    for (const GpuPlace& gpu : gpus_) uuids.push_back(gpu.uuid);
    return uuids;
}

absl::Status Supervisor::ownGpus() {
    auto chosen = chooseGpus(allGpus_, options_.gpus);
    if (!chosen.ok())
        return absl::Status(chosen.status().code(), absl::StrCat("--gpus of node ", options_.node,
                                                                 ": ", chosen.status().message()));
    gpus_ = *std::move(chosen);
    std::string names;
    for (const GpuPlace& gpu : gpus_) absl::StrAppend(&names, names.empty() ? "" : ", ", gpu.gpu);
    if (!allGpus_.empty())
        spdlog::info("node {} gives {} of its {} GPUs to ranks{}{}", options_.node, gpus_.size(),
                     allGpus_.size(), names.empty() ? "" : ": ", names);
    return absl::OkStatus();
}

void Supervisor::obey(const AgentCommand& command) {
    if (const auto* start = std::get_if<StartRank>(&command)) this->start(*start);
    if (const auto* signal = std::get_if<SignalRank>(&command)) this->signal(*signal);
    if (const auto* fill = std::get_if<FillDisk>(&command)) fillDisk(*fill);
    if (const auto* end = std::get_if<EndFault>(&command)) endFault(*end);
    if (std::holds_alternative<KillNode>(command)) killNode();
}

void Supervisor::start(const StartRank& command) {
    if (const auto it = processes_.find(command.process); it != processes_.end())
        return emit_(RankUp{command.process, it->second.handle->pid(), "", it->second.gpu});
    auto process = spawn(command);
    if (!process.ok()) {
        registry_.remove(command.process);
        return emit_(RankUp{command.process, 0, std::string(process.status().message())});
    }
    const RankUp up{command.process, process->handle->pid(), "", process->gpu};
    processes_[command.process] = *std::move(process);
    emit_(up);
}

/// The one that fewest use, of those that nobody has for itself. A process has its GPU until it is
/// gone, for until then it may have memory there.
absl::StatusOr<GpuPlace> Supervisor::gpuFor(const StartRank& command, UniqueFd& claim) const {
    if (!command.onGpu || command.noGpu || (gpus_.empty() && gpuGone_.empty())) return GpuPlace{};
    if (gpus_.empty())
        return absl::ResourceExhaustedError(
            absl::StrCat("node ", options_.node, " has no GPU left to give to a rank: ", gpuGone_));
    struct Use {
        std::vector<RankProcess> ranks;
        bool alone = false;
    };
    std::map<std::string, Use> uses;
    for (const auto& [id, process] : processes_) {
        Use& use = uses[process.gpu.uuid];
        use.ranks.push_back(id);
        use.alone = use.alone || !process.gpu.shared;
    }
    std::vector<GpuPlace> order = gpus_;
    std::ranges::stable_sort(order, {}, [&](const GpuPlace& gpu) {
        const Use& use = uses[gpu.uuid];
        return std::pair(use.alone, use.ranks.size());
    });
    std::string by;
    for (GpuPlace& gpu : order) {
        gpu.shared = command.shareGpu;
        const Use& use = uses[gpu.uuid];
        if (use.ranks.empty() || (command.shareGpu && !use.alone)) {
            auto claimed = host_.claim(gpu);
            if (claimed.ok()) {
                claim = *std::move(claimed);
                return gpu;
            }
            by = std::string(claimed.status().message());
        } else if (by.empty()) {
            by = absl::StrCat("GPU ", gpu.gpu, " by ", nameOf(use.ranks.front()));
        }
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        "node ", options_.node, " gives ", gpus_.size(), " GPUs to ranks, one each, and all are ",
        "taken, ", by, "; use ",
        command.shareGpu ? "another node, or set share_gpu = true in that job too"
                         : "fewer replicas or shards, another node, or share_gpu = true"));
}

std::string Supervisor::whyNoGpu(const StartRank& command) const {
    const auto why = [&]() -> std::string {
        if (allGpus_.empty()) return host_.whyNoGpus();
        if (command.noGpu) return "others of this job compute without one";
        return absl::StrCat("its agent has --gpus ", options_.gpus);
    };
    return absl::StrCat("node ", options_.node, " gave it no GPU: ", why());
}

/// A program of the job's own learns by its environment what our worker learns by arguments.
absl::Status Supervisor::chooseProgram(StartRank& command) const {
    if (command.argv.empty()) return absl::InvalidArgumentError("no program to start was named");
    const std::string told = protocol::rankVariable("");
    std::vector<std::string> given;  // by the job, not by the coordinator
    for (const std::string& variable : command.environment)
        if (!variable.starts_with(told)) given.push_back(variable);
    const bool ofJob = given.size() != command.environment.size();
    if (!ofJob && !options_.worker.empty()) {
        command.argv.front() = options_.worker;
        command.environment.clear();
        return absl::OkStatus();
    }
    if (options_.allow)
        if (absl::Status s = checkAllowed(*options_.allow, command.argv.front(), command.directory,
                                          given, options_.allowFile);
            !s.ok())
            return absl::PermissionDeniedError(
                absl::StrCat("node ", options_.node, ": ", s.message()));
    if (ofJob && !options_.worker.empty())
        command.environment.push_back(absl::StrCat(
            protocol::rankVariable("plugin-path"), "=",
            absl::StrJoin(model::pluginFolders(model::withoutLinks(options_.worker)), ":")));
    return absl::OkStatus();
}

absl::StatusOr<Supervisor::Process> Supervisor::spawn(StartRank command) {
    if (processes_.size() >= options_.slots)
        return absl::ResourceExhaustedError(
            absl::StrCat("node ", options_.node, " has ", options_.slots, " slots, all taken"));
    UniqueFd claim;
    const absl::StatusOr<GpuPlace> gpu = gpuFor(command, claim);
    if (!gpu.ok()) return gpu.status();
    if (absl::Status s = chooseProgram(command); !s.ok()) return s;
    if (options_.controllers.size() > 1)
        command.environment.push_back(absl::StrCat(protocol::rankVariable("controller-note"), "=",
                                                   controllerNote(options_.runDir)));
    // No rank computes on a GPU that it was not given: another may have it. Without the driver's
    // library nobody knows which there are, and those that share see what this process sees.
    if (command.onGpu && !(command.shareGpu && allGpus_.empty())) {
        command.environment.push_back(absl::StrCat("CUDA_VISIBLE_DEVICES=", gpu->uuid));
        if (gpu->uuid.empty())
            command.environment.push_back(
                absl::StrCat(protocol::rankVariable("no-gpu"), "=", whyNoGpu(command)));
    }
    // Noted before it is started: if this agent ended in between, or had no room for a note, it
    // would leave a process behind that nobody knows of.
    if (absl::Status s = registry_.add({command.process, 0, 0, *gpu}); !s.ok())
        return absl::Status(s.code(),
                            absl::StrCat("node ", options_.node, " cannot note that it runs ",
                                         nameOf(command.process), ", and does not: ", s.message()));
    auto process = host_.start(command, registry_.path(command.process), watcher(command.process));
    if (!process.ok()) return process.status();
    // With the first note alone it is found by what it prints to.
    if (absl::Status s =
            registry_.add({command.process, (*process)->pid(), (*process)->startTime(), *gpu});
        !s.ok())
        spdlog::warn("the pid of {} is not noted: {}", nameOf(command.process), s.ToString());
    return Process{*std::move(process), *gpu, std::move(claim), 0, {}};
}

ProcessWatcher Supervisor::watcher(const RankProcess& id) {
    return {[this, id](bool isStderr, std::string line, uint64_t dropped) {
                printed(id, isStderr, std::move(line), dropped);
            },
            [this, id](int32_t signal) { died(id, signal); }, [this, id] { gone(id); },
            [this, id](std::vector<RunFile> files) {
                emit_(RankFiles{id, std::move(files)});
            }};
}

void Supervisor::printed(const RankProcess& id, bool isStderr, std::string line, uint64_t dropped) {
    if (const auto it = processes_.find(id); isStderr && it != processes_.end())
        keepWords(line, it->second.words);
    emit_(OutputLine{id, isStderr, std::move(line), dropped});
}

void Supervisor::died(const RankProcess& id, int32_t signal) {
    const auto it = processes_.find(id);
    if (it == processes_.end()) return;
    Process& process = it->second;
    process.killedBy = signal;
    emit_(RankDied{id, process.handle->pid(), signal, reactor_.clock().unixNs(), 0,
                   process.words.critical ? process.words.text : ""});
}

void Supervisor::gone(const RankProcess& id) {
    const auto it = processes_.find(id);
    if (it == processes_.end()) return;
    Process& process = it->second;
    ExitStatus status = process.handle->reap();
    if (!status.known && process.killedBy != 0) status = {true, 0, process.killedBy};
    const bool gaveUp = status.signal == 0 && status.exitCode != 0;
    // Its reason is among its last words. Nobody waits for those of one that was killed.
    if (gaveUp) process.handle->drainOutput();
    emit_(RankGone{id, process.handle->pid(), status.exitCode, status.signal, status.known,
                   reactor_.clock().unixNs(), 0,
                   process.words.critical || gaveUp ? process.words.text : ""});
    if (!gaveUp) process.handle->drainOutput();
    processes_.erase(it);
    registry_.remove(id);
}

void Supervisor::signal(const SignalRank& command) {
    const FaultKey key{command.process.job, command.fault};
    const auto it = processes_.find(command.process);
    const absl::Status sent =
        it == processes_.end()
            ? absl::NotFoundError(
                  absl::StrCat(nameOf(command.process), " does not run on node ", options_.node))
            : it->second.handle->signal(command.signal);
    if (command.fault == 0) return;
    note(key, false, std::string(sent.message()));
    if (!sent.ok()) return;
    if (command.signal == SIGSTOP || command.signal == 0)
        last(key, {command.process, nullptr, 0}, command.durationMs);
}

void Supervisor::fillDisk(const FillDisk& command) {
    const FaultKey key{command.job, command.fault};
    auto ballast = DiskBallast::fill(command.directory);
    note(key, false, std::string(ballast.status().message()));
    if (!ballast.ok()) return;
    last(key, {{}, std::make_unique<DiskBallast>(*std::move(ballast)), 0}, command.durationMs);
}

void Supervisor::last(const FaultKey& key, LastingFault fault, uint64_t durationMs) {
    // A fault on a whole replica stops several processes: its end is that of each.
    if (durationMs > 0)
        fault.timer = reactor_.after(static_cast<MonoNs>(durationMs) * kMillisecond,
                                     [this, key] { endHeld(key); });
    faults_.emplace(key, std::move(fault));
}

void Supervisor::endFault(const EndFault& command) {
    endHeld({command.job, command.fault});
    for (const RankProcess& rank : command.ranks)
        if (const auto it = processes_.find(rank); it != processes_.end())
            (void)it->second.handle->signal(protocol::endFaultSignal(),
                                            static_cast<int32_t>(command.fault));
}

void Supervisor::endHeld(const FaultKey& key) {
    const auto [begin, end] = faults_.equal_range(key);
    if (begin == end) return;
    for (auto it = begin; it != end; ++it) {
        reactor_.cancel(it->second.timer);
        const auto process = processes_.find(it->second.stopped);
        if (it->second.disk == nullptr && process != processes_.end())
            (void)process->second.handle->signal(SIGCONT);
    }
    faults_.erase(begin, end);
    note(key, true, "");
}

void Supervisor::note(const FaultKey& key, bool ended, const std::string& error) {
    emit_(AgentFaultNoted{key.first, key.second, ended, error, reactor_.clock().unixNs(), 0});
}

void Supervisor::killNode() {
    for (const auto& [id, process] : processes_) (void)process.handle->signal(SIGKILL);
    if (options_.onKillNode) return options_.onKillNode();
    ::kill(::getpid(), SIGKILL);
}

void Supervisor::sample() {
    host_.sample([this](const HostFigures& figures) { sampled(figures); });
}

void Supervisor::sampled(const HostFigures& figures) {
    NodeSample sample;
    sample.node = {options_.node,
                   figures.memory.totalBytes,
                   figures.memory.availableBytes,
                   {},
                   figures.whyNoGpus};
    for (const GpuFigures& gpu : figures.gpus) sample.node.gpus.push_back(gpu.sample);
    for (const auto& [id, process] : processes_) {
        const ProcessFigures own = process.handle->sample();
        GpuSampler::Share gpu = GpuSampler::shareOf(process.handle->pid(), figures.gpus);
        // The driver may know its processes by other numbers, as in a container.
        if (gpu.gpus.empty() && !process.gpu.uuid.empty()) gpu.gpus = {process.gpu.gpu};
        sample.ranks.push_back(
            {id, own.cpuPercent, own.rssBytes, gpu.busyPercent, gpu.memoryBytes, gpu.gpus});
    }
    emit_(std::move(sample));
    tellTroubles(figures.gpus);
    sampling_ = reactor_.after(options_.sampleMs * kMillisecond, [this] { this->sample(); });
}

void Supervisor::tellTroubles(const std::vector<GpuFigures>& gpus) {
    for (const GpuFigures& gpu : gpus) {
        std::set<RankProcess> now;
        for (const auto& [id, process] : processes_)
            // The driver may know its processes by other numbers, as in a container.
            if (gpu.processes.contains(process.handle->pid()) ||
                (!process.gpu.uuid.empty() && process.gpu.gpu == gpu.sample.gpu))
                now.insert(id);
        // The rank that ran there when it happened may be dead by now.
        std::set<RankProcess> users = std::exchange(gpuUsers_[gpu.sample.gpu], now);
        users.merge(now);
        for (model::GpuTroubled trouble : gpu.troubles) {
            trouble.node = options_.node;
            trouble.seenNs = reactor_.clock().unixNs();
            if (!retire(trouble))
                spdlog::error("{}: {}", model::gpuName(trouble), model::troubleText(trouble));
            emit_(
                GpuTroubleSeen{std::move(trouble), {users.begin(), users.end()}, this->gpus(), 0});
        }
    }
}

/// A GPU that no program reaches any more is given to no rank, until an agent finds it again.
bool Supervisor::retire(const model::GpuTroubled& trouble) {
    constexpr uint64_t kOffTheBus = 79;
    if (trouble.xid != kOffTheBus) return false;
    if (std::erase_if(gpus_, [&](const GpuPlace& g) { return g.gpu == trouble.gpu; }) == 0)
        return false;
    gpuGone_ = absl::StrCat(model::gpuName(trouble), ": ", model::troubleText(trouble),
                            ", then start the agent again");
    spdlog::error("{}; until then no rank is given it, {} are left", gpuGone_, gpus_.size());
    return true;
}

}  // namespace bulkhead::runtime
