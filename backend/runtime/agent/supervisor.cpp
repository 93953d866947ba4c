// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/supervisor.h"

#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/model/gpu_text.h"
#include "backend/runtime/protocol/messages.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {
namespace {

std::string name(const RankProcess& p) {
    return absl::StrCat(p.job, " r", p.rank.replica, "s", p.rank.shard, " incarnation ",
                        p.incarnation);
}

/// Begins the line by which a worker says why it ends, after the time: "15:25:11.100 critical
/// WORDS".
constexpr std::string_view kCritical = " critical ";

/// A warning of another thread may come after that line.
void keepWords(const std::string& line, LastWords& last) {
    const size_t at = line.find(kCritical);
    if (at != std::string::npos)
        last = {line.substr(at + kCritical.size()), true};
    else if (!last.critical)
        last.text = line;
}

}  // namespace

Supervisor::Supervisor(const AgentOptions& options, RankRegistry registry, Reactor& reactor,
                       const Clock& clock, Emit emit)
    : options_(options),
      registry_(std::move(registry)),
      reactor_(reactor),
      clock_(clock),
      emit_(std::move(emit)) {
    sample();
}

Supervisor::~Supervisor() {
    if (sampling_ != 0) reactor_.cancel(sampling_);
    for (auto& [key, fault] : faults_)
        if (fault.timer != 0) reactor_.cancel(fault.timer);
    for (auto& [id, process] : processes_) {
        reactor_.unwatch(process->handle.get());
        if (process->out) reactor_.unwatch(process->out->fd());
        if (process->err) reactor_.unwatch(process->err->fd());
    }
}

void Supervisor::adopt() {
    for (const RegisteredRank& known : registry_.load()) {
        auto handle = openProcess(known.pid);
        // Asked after the handle is open: a pid that was given to somebody else in between shows.
        if (!handle.ok() || processStartTime(known.pid) != known.startTime) {
            registry_.remove(known.process);
            emit_(RankGone{known.process, known.pid, 0, 0, false, clock_.unixNs(), 0});
            continue;
        }
        auto process = std::make_unique<Process>();
        process->id = known.process;
        process->pid = known.pid;
        process->handle = *std::move(handle);
        if (absl::Status s = openOutput(*process); !s.ok())
            spdlog::warn("output of {} is lost: {}", name(known.process), s.ToString());
        watchLife(*process, LifeLock::ofProcess(known.pid));
        supervise(std::move(process));
    }
}

std::vector<RunningRank> Supervisor::running() const {
    std::vector<RunningRank> all;
    for (const auto& [id, process] : processes_) all.push_back({id, process->pid});
    return all;
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
        return emit_(RankUp{command.process, it->second->pid, ""});
    auto process = spawn(command);
    if (!process.ok()) {
        registry_.remove(command.process);
        return emit_(RankUp{command.process, 0, std::string(process.status().message())});
    }
    const int32_t pid = (*process)->pid;
    supervise(*std::move(process));
    emit_(RankUp{command.process, pid, ""});
}

absl::StatusOr<std::unique_ptr<Supervisor::Process>> Supervisor::spawn(const StartRank& command) {
    if (processes_.size() >= options_.slots)
        return absl::ResourceExhaustedError(
            absl::StrCat("node ", options_.node, " has ", options_.slots, " slots, all taken"));
    auto process = std::make_unique<Process>();
    process->id = command.process;
    if (absl::Status s = openOutput(*process); !s.ok()) return s;
    auto life = LifeLock::create();
    auto pid = launch({command.argv, command.environment, process->out->fd(), process->err->fd(),
                       life.ok() ? life->fd() : -1});
    if (!pid.ok()) return pid.status();
    process->pid = *pid;
    auto handle = openProcess(*pid);  // our child: it stays a zombie until reaped, so this finds it
    if (!handle.ok()) return handle.status();
    process->handle = *std::move(handle);
    const RegisteredRank entry{command.process, *pid, processStartTime(*pid).value_or(0)};
    if (absl::Status s = registry_.add(entry); !s.ok())
        spdlog::warn("{} would not be found again after a restart of this agent: {}",
                     name(command.process), s.ToString());
    watchLife(*process, std::move(life));
    return process;
}

absl::Status Supervisor::openOutput(Process& process) {
    for (const bool isStderr : {false, true}) {
        auto path = registry_.pipe(process.id, isStderr);
        if (!path.ok()) return path.status();
        auto reader =
            OutputReader::open(*path, options_.outputLinesPerSecond,
                               [this, p = &process, isStderr](std::string line, uint64_t dropped) {
                                   if (isStderr) keepWords(line, p->words);
                                   emit_(OutputLine{p->id, isStderr, std::move(line), dropped});
                               });
        if (!reader.ok()) return reader.status();
        (isStderr ? process.err : process.out) = std::make_unique<OutputReader>(*std::move(reader));
    }
    return absl::OkStatus();
}

void Supervisor::supervise(std::unique_ptr<Process> process) {
    const RankProcess id = process->id;
    for (OutputReader* reader : {process->out.get(), process->err.get()})
        if (reader != nullptr) watch(reader->fd(), [this, reader] { reader->drain(clock_.now()); });
    watch(process->handle.get(), [this, id] { gone(id); });
    processes_[id] = std::move(process);
}

void Supervisor::watch(int fd, std::function<void()> task) {
    const absl::Status watched =
        reactor_.watch(fd, EPOLLIN, [task = std::move(task)](uint32_t) { task(); });
    // Only when the kernel is out of memory for one more descriptor.
    if (!watched.ok())
        spdlog::error("cannot watch a process or its output: {}", watched.ToString());
}

void Supervisor::watchLife(Process& process, absl::StatusOr<LifeLock> lock) {
    if (!lock.ok())
        return spdlog::warn("the death of {} will be noticed only when it is gone: {}",
                            name(process.id), lock.status().ToString());
    process.death = std::make_unique<DeathWatch>(
        *std::move(lock), process.pid, [this, id = process.id](std::optional<int32_t> signal) {
            reactor_.post([this, id, signal] { died(id, signal); });
        });
}

void Supervisor::died(const RankProcess& id, std::optional<int32_t> signal) {
    const auto it = processes_.find(id);
    if (it == processes_.end()) return;
    if (!signal)
        return spdlog::warn(
            "{} let go of its life lock and lives: its death will be noticed only "
            "when it is gone",
            name(id));
    Process& process = *it->second;
    process.killedBy = *signal;
    emit_(RankDied{id, process.pid, *signal, clock_.unixNs(), 0,
                   process.words.critical ? process.words.text : ""});
}

void Supervisor::gone(const RankProcess& id) {
    const auto it = processes_.find(id);
    if (it == processes_.end()) return;
    const std::unique_ptr<Process> process = std::move(it->second);
    processes_.erase(it);
    ExitStatus status = reap(process->handle);
    if (!status.known && process->killedBy != 0) status = {true, 0, process->killedBy};
    const auto finish = [&] {
        for (OutputReader* reader : {process->out.get(), process->err.get()})
            if (reader != nullptr) reader->finish(clock_.now());
    };
    const bool gaveUp = status.signal == 0 && status.exitCode != 0;
    // Its reason is among its last words. Nobody waits for those of one that was killed.
    if (gaveUp) finish();
    emit_(RankGone{id, process->pid, status.exitCode, status.signal, status.known, clock_.unixNs(),
                   0, process->words.critical || gaveUp ? process->words.text : ""});
    if (!gaveUp) finish();
    reactor_.unwatch(process->handle.get());
    for (OutputReader* reader : {process->out.get(), process->err.get()})
        if (reader != nullptr) reactor_.unwatch(reader->fd());
    registry_.remove(id);
    sampler_.forget(process->pid);
}

void Supervisor::signal(const SignalRank& command) {
    const FaultKey key{command.process.job, command.fault};
    const auto it = processes_.find(command.process);
    const absl::Status sent =
        it == processes_.end()
            ? absl::NotFoundError(
                  absl::StrCat(name(command.process), " does not run on node ", options_.node))
            : signalProcess(it->second->handle, command.signal);
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
            (void)signalProcess(it->second->handle, protocol::endFaultSignal(),
                                static_cast<int32_t>(command.fault));
}

void Supervisor::endHeld(const FaultKey& key) {
    const auto [begin, end] = faults_.equal_range(key);
    if (begin == end) return;
    for (auto it = begin; it != end; ++it) {
        if (it->second.timer != 0) reactor_.cancel(it->second.timer);
        const auto process = processes_.find(it->second.stopped);
        if (it->second.disk == nullptr && process != processes_.end())
            (void)signalProcess(process->second->handle, SIGCONT);
    }
    faults_.erase(begin, end);
    note(key, true, "");
}

void Supervisor::note(const FaultKey& key, bool ended, const std::string& error) {
    emit_(AgentFaultNoted{key.first, key.second, ended, error, clock_.unixNs(), 0});
}

void Supervisor::killNode() {
    for (const auto& [id, process] : processes_) (void)signalProcess(process->handle, SIGKILL);
    if (options_.onKillNode) return options_.onKillNode();
    ::kill(::getpid(), SIGKILL);
}

/// The driver may take seconds to answer; nothing else waits for it.
void Supervisor::sample() {
    askingGpus_ =
        std::jthread([this] { reactor_.post([this, gpus = gpus_.sample()] { sampled(gpus); }); });
}

void Supervisor::sampled(const std::vector<GpuFigures>& gpus) {
    const MonoNs now = clock_.now();
    NodeSample sample;
    const ProcSampler::Memory memory = sampler_.memory();
    sample.node = {options_.node, memory.totalBytes, memory.availableBytes, {}, gpus_.whyNone()};
    for (const GpuFigures& gpu : gpus) sample.node.gpus.push_back(gpu.sample);
    for (const auto& [id, process] : processes_) {
        const ProcessFigures figures = sampler_.sample(process->pid, now);
        const GpuSampler::Share gpu = GpuSampler::shareOf(process->pid, gpus);
        sample.ranks.push_back(
            {id, figures.cpuPercent, figures.rssBytes, gpu.busyPercent, gpu.memoryBytes, gpu.gpus});
    }
    emit_(std::move(sample));
    tellTroubles(gpus);
    sampling_ = reactor_.after(options_.sampleMs * kMillisecond, [this] { this->sample(); });
}

void Supervisor::tellTroubles(const std::vector<GpuFigures>& gpus) {
    for (const GpuFigures& gpu : gpus) {
        std::set<RankProcess> now;
        for (const auto& [id, process] : processes_)
            if (gpu.processes.contains(process->pid)) now.insert(id);
        // Whoever ran there when it happened may be dead by now.
        std::set<RankProcess> users = std::exchange(gpuUsers_[gpu.sample.gpu], now);
        users.merge(now);
        for (model::GpuTroubled trouble : gpu.troubles) {
            trouble.node = options_.node;
            trouble.seenNs = clock_.unixNs();
            spdlog::error("{}: {}", model::gpuName(trouble), model::troubleText(trouble));
            emit_(GpuTroubleSeen{std::move(trouble), {users.begin(), users.end()}, 0});
        }
    }
}

}  // namespace bulkhead::runtime
