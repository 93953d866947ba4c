// SPDX-License-Identifier: Apache-2.0
#include "tests/replica/mini_job.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "backend/common/codec.h"
#include "backend/model/json.h"
#include "backend/runtime/agent/process.h"
#include "backend/runtime/transport/rank_secrets.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;

protocol::Options optionsOf(const model::JobSpec& spec) {
    protocol::Options o;
    o.replicas = spec.replicas;
    o.shards = spec.shards;
    o.steps = spec.steps;
    o.secret = Secret::random();
    o.sequenceLength = spec.sequenceLength;
    o.samplesPerReplica = spec.samplesPerReplica;
    o.domains = static_cast<uint32_t>(spec.domains.size());
    o.optimizer->learningRate = spec.optimizer.learningRate;
    o.optimizer->warmupSteps = spec.optimizer.warmupSteps;
    o.policies.checkpointEverySteps = spec.policies.checkpointEverySteps;
    o.policies.parityEverySteps = spec.policies.parityEverySteps.value_or(protocol::kParityAuto);
    o.timeouts.beatMs = spec.timeouts.beatMs;
    o.timeouts.orphanMs = spec.timeouts.orphanMs;
    o.timeouts.heartbeatMs = spec.timeouts.heartbeatMs;
    o.timeouts.joinMs = 60'000;
    return o;
}

}  // namespace

model::JobSpec tinyJob(const std::string& folder) {
    fs::create_directories(folder);
    std::ofstream text(folder + "/text.txt");
    for (int i = 0; i < 4000; ++i)
        text << "the " << i % 97 << " sailors of ship " << i % 31 << "\n";
    text.close();
    model::JobSpec spec;
    spec.name = "mini";
    spec.replicas = 2;
    spec.shards = 2;
    spec.modelToml = "size = \"tiny\"\n";
    spec.sequenceLength = 32;
    spec.samplesPerReplica = 4;
    spec.microBatch = 2;
    spec.domains = {{"prose", {folder + "/text.txt"}}};
    spec.checkpointDir = folder + "/checkpoints";
    spec.policies.checkpointEverySteps = 0;
    spec.policies.parityEverySteps = 1;
    return spec;
}

MiniJob::MiniJob(model::JobSpec spec, std::string folder,
                 std::optional<protocol::LogCheckpoint> resume)
    : spec_(std::move(spec)), folder_(std::move(folder)) {
    fs::create_directories(folder_);
    ::setenv("BULKHEAD_PLUGIN_PATH", BULKHEAD_PLUGINS, 0);  // ranks inherit it
    std::ofstream(folder_ + "/job.json") << model::toJsonText(spec_);
    reactor_ = *Reactor::create(clock_);
    ChannelOptions options;
    options.keyOf = [this](std::string_view identity) { return secret_.derive(identity); };
    listener_ = *listenControl(*reactor_, "127.0.0.1:0", options,
                               [this](std::unique_ptr<ControlChannel> c) { accept(std::move(c)); });
    address_ = listener_->address();
    machine_ = resume ? std::make_unique<protocol::CoordinatorMachine>(optionsOf(spec_), 1, *resume)
                      : std::make_unique<protocol::CoordinatorMachine>(optionsOf(spec_), 1,
                                                                       protocol::RecoveredState{});
    perform(machine_->begin(clock_.now()));
}

MiniJob::~MiniJob() {
    for (const Process& p : processes_) ::kill(p.pid, SIGKILL);
    for (const Process& p : processes_) ::waitpid(p.pid, nullptr, 0);
}

bool MiniJob::runUntil(const std::function<bool()>& done, MonoNs patience) {
    const MonoNs end = clock_.now() + patience;
    while (!done()) {
        // Code 5 says that no restart will help.
        const bool hopeless =
            std::any_of(exits_.begin(), exits_.end(), [](const auto& e) { return e.second == 5; });
        if (clock_.now() > end || hopeless) return false;
        reactor_->runOnce(5 * kMillisecond);
        reap();
        if (machine_ && wakeAt_ && clock_.now() >= *wakeAt_) {
            wakeAt_.reset();
            feed(protocol::Tick{});
        }
    }
    return true;
}

void MiniJob::feed(const protocol::Input& input) {
    if (machine_) perform(machine_->step(clock_.now(), input));
}

void MiniJob::perform(const protocol::Actions& actions) {
    std::vector<protocol::Input> answers;
    for (const protocol::Action& action : actions) {
        if (const auto* a = std::get_if<protocol::SendReplica>(&action))
            send(
                [&](const Link& l) {
                    return l.rank->replica == a->replica && l.incarnation == a->incarnation;
                },
                a->message);
        else if (const auto* r = std::get_if<protocol::SendRank>(&action))
            send(
                [&](const Link& l) {
                    return *l.rank == r->rank && l.incarnation == r->incarnation;
                },
                r->message);
        else if (const auto* l = std::get_if<protocol::AppendLog>(&action)) {
            if (l->overlapped) answers.push_back(protocol::RecordDurable{l->sequence});
        } else if (const auto* s = std::get_if<protocol::StartReplica>(&action))
            waitingStarts_[s->replica] = *s;
        else if (const auto* k = std::get_if<protocol::StopReplica>(&action)) {
            for (const Process& p : processes_)
                if (p.rank.replica == k->replica && p.incarnation <= k->incarnation &&
                    !keepExpelled_)
                    ::kill(p.pid, k->kill ? SIGKILL : SIGTERM);
        } else if (const auto* w = std::get_if<protocol::WakeAt>(&action))
            wakeAt_ = w->at;
        else if (const auto* e = std::get_if<protocol::Emit>(&action))
            facts_.push_back({clock_.now(), e->fact});
        else if (std::holds_alternative<protocol::Finished>(action))
            finished_ = true;
    }
    for (const protocol::Input& answer : answers) feed(answer);
    startWaiting();
}

void MiniJob::send(const std::function<bool(const Link&)>& to, protocol::ToReplica message) {
    if (auto* welcome = std::get_if<protocol::Welcome>(&message))
        welcome->jobJson = model::toJsonText(spec_);
    if (const auto* quorum = std::get_if<protocol::Quorum>(&message))
        keys_[{quorum->term, quorum->epoch}].insert(quorum->exchangeKey.words);
    const std::string bytes = encode(message);
    for (auto& [id, link] : links_)
        if (link.rank && to(link)) (void)link.channel->send(bytes);
}

void MiniJob::toReplica(int32_t replica, const protocol::ToReplica& message) {
    send([&](const Link& l) { return l.rank->replica == replica; }, message);
}

void MiniJob::accept(std::unique_ptr<ControlChannel> channel) {
    const uint64_t id = nextLink_++;
    ControlChannel* raw = channel.get();
    links_[id].channel = std::move(channel);
    raw->start([this, id](std::string bytes) { receive(id, bytes); },
               [this, id](const absl::Status&) { links_.erase(id); });
}

void MiniJob::receive(uint64_t id, const std::string& bytes) {
    absl::StatusOr<protocol::ToCoordinator> message = decode<protocol::ToCoordinator>(bytes);
    ASSERT_TRUE(message.ok()) << message.status();
    if (anotherVersion_) {
        (void)links_[id].channel->send("\xff\xff\xff\xff of another build");
        return;
    }
    Link& link = links_[id];
    if (const auto* hello = std::get_if<protocol::Hello>(&*message)) {
        EXPECT_EQ(links_[id].channel->identity(),
                  rankIdentity(hello->job, hello->endpoint.rank, hello->endpoint.incarnation));
        link.rank = hello->endpoint.rank;
        link.incarnation = hello->endpoint.incarnation;
    }
    ASSERT_TRUE(link.rank.has_value()) << "the first message must be Hello";
    if (const auto* done = std::get_if<protocol::CheckpointDone>(&*message))
        checkpoints_.push_back(*done);
    if (const auto* noted = std::get_if<protocol::FaultNoted>(&*message)) noted_.push_back(*noted);
    feed(protocol::Received{*link.rank, *message});
}

void MiniJob::startReplica(const protocol::StartReplica& start) {
    for (uint32_t shard = 0; shard < spec_.shards; ++shard) {
        const RankId rank{start.replica, static_cast<int32_t>(shard)};
        const std::vector<std::string> args = {BULKHEAD_WORKER,
                                               "--job",
                                               spec_.name,
                                               "--job-file",
                                               jobFileOf(rank.replica),
                                               "--coordinator",
                                               address_,
                                               "--replica",
                                               std::to_string(rank.replica),
                                               "--shard",
                                               std::to_string(rank.shard),
                                               "--incarnation",
                                               std::to_string(start.incarnation),
                                               "--node",
                                               "here",
                                               "--address",
                                               "127.0.0.1",
                                               "--run-dir",
                                               folder_};
        const std::string log = folder_ + "/r" + std::to_string(rank.replica) + "s" +
                                std::to_string(rank.shard) + ".log";
        const UniqueFd secrets = *secretsPipe(
            {secret_.derive(rankIdentity(spec_.name, rank, start.incarnation)),
             secret_.derive(absl::StrCat("replica ", rank.replica, " ", start.incarnation))});
        const UniqueFd out(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
        LifeLock life = *LifeLock::create();
        const pid_t pid =
            *launch({args, {}, out.get(), out.get(), life.fd(), secrets.get(), "", {}});
        auto death = std::make_unique<DeathWatch>(
            std::move(life), pid, [this, pid](std::optional<int32_t> signal) {
                if (signal) reactor_->post([this, pid, s = *signal] { died(pid, s); });
            });
        processes_.push_back({rank, start.incarnation, pid, std::move(death)});
        feed(protocol::RankRunning{rank, start.incarnation, pid, "here"});
    }
}

/// It ends, and holds what it has for a while yet.
void MiniJob::died(pid_t pid, int32_t signal) {
    for (const Process& p : processes_) {
        if (p.pid != pid) continue;
        protocol::RankExited exited;
        exited.rank = p.rank;
        exited.incarnation = p.incarnation;
        exited.signal = signal;
        exited.node = "here";
        return feed(exited);
    }
}

void MiniJob::startWaiting() {
    for (;;) {
        const auto next = std::ranges::find_if(waitingStarts_, [this](const auto& start) {
            return std::ranges::none_of(
                processes_, [&](const Process& p) { return p.rank.replica == start.first; });
        });
        if (next == waitingStarts_.end()) return;
        const protocol::StartReplica start = next->second;
        waitingStarts_.erase(next);
        startReplica(start);
    }
}

void MiniJob::reap() {
    for (size_t i = 0; i < processes_.size();) {
        int status = 0;
        if (::waitpid(processes_[i].pid, &status, WNOHANG) != processes_[i].pid) {
            ++i;
            continue;
        }
        const RankId rank = processes_[i].rank;
        const uint32_t incarnation = processes_[i].incarnation;
        processes_.erase(processes_.begin() + static_cast<std::ptrdiff_t>(i));
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        exits_.emplace_back(rank, code);
        protocol::RankExited exited;
        exited.rank = rank;
        exited.incarnation = incarnation;
        exited.exitCode = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        exited.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        exited.node = "here";
        feed(exited);
    }
    startWaiting();
}

void MiniJob::kill(RankId rank, int signal) {
    for (const Process& p : processes_)
        if (p.rank == rank) ::kill(p.pid, signal);
}

void MiniJob::operate(protocol::Operation operation) {
    feed(operation);
}

void MiniJob::moveTo(int32_t replica, const std::string& device) {
    moved_.insert(replica);
    model::JobSpec spec = spec_;
    spec.device = device;
    std::ofstream(jobFileOf(replica)) << model::toJsonText(spec);
}

std::string MiniJob::jobFileOf(int32_t replica) const {
    return folder_ + (moved_.contains(replica) ? "/job-r" + std::to_string(replica) : "/job") +
           ".json";
}

void MiniJob::loseCoordinator() {
    listener_.reset();
    links_.clear();
    machine_.reset();
}

uint64_t MiniJob::committed() const {
    return machine_ ? machine_->committedStep() : 0;
}

bool MiniJob::contributes(int32_t replica) const {
    for (const protocol::ReplicaView& view : machine_->replicas())
        if (view.replica == replica) return view.contributor;
    return false;
}

std::string MiniJob::output() const {
    std::ostringstream all;
    for (const auto& c : facts<protocol::fact::ReplicaChanged>())
        all << "r" << c.replica << " i" << c.incarnation << " " << static_cast<int>(c.state)
            << " step " << c.step << " " << c.why << "\n";
    for (const auto& e : facts<protocol::fact::EvidenceSeen>())
        all << "evidence " << enumName(e.kind) << " r" << e.replica << " " << e.detail << "\n";
    for (const auto& q : facts<protocol::fact::QuorumDecided>())
        all << "quorum " << q.step << "/" << q.epoch << "/" << q.attempt << " of "
            << q.contributors.size() << " " << q.explanation << "\n";
    for (const auto& entry : fs::directory_iterator(folder_))
        if (entry.path().extension() == ".log")
            all << "--- " << entry.path().filename() << "\n"
                << std::ifstream(entry.path()).rdbuf() << "\n";
    return all.str();
}

}  // namespace bulkhead::runtime
