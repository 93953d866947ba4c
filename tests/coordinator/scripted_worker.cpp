// SPDX-License-Identifier: Apache-2.0
// A rank without a model: takes bulkhead-worker's command line, speaks the protocol through the
// real rank machine over a real socket, and "computes" in no time. Its state is a number that
// follows from the commit records, so that a wrong step shows. One shard per replica.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "backend/common/clock.h"
#include "backend/common/codec.h"
#include "backend/common/file_system.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/protocol/rank_machine.h"
#include "backend/runtime/protocol/replica_fold.h"
#include "backend/runtime/transport/control_channel.h"
#include "backend/runtime/transport/life_lock.h"
#include "backend/runtime/transport/rank_secrets.h"
#include "backend/runtime/transport/reactor.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

using namespace bulkhead::protocol;  // a rank speaks nothing else

constexpr MonoNs kExchangeTakes = 5 * kMillisecond;

uint64_t stateAfter(uint64_t step) {
    return (step + 1) * 0x9e3779b97f4a7c15ull;
}

class ScriptedRank {
  public:
    ScriptedRank(std::map<std::string, std::string> args, Reactor& reactor, bool endsHopeless)
        : args_(std::move(args)),
          reactor_(reactor),
          replica_(std::stoi(args_["--replica"])),
          incarnation_(static_cast<uint32_t>(std::stoul(args_["--incarnation"]))),
          machine_(RankConfig{{replica_, 0}, incarnation_, 1, 20000}),
          fold_(replica_, incarnation_, 1),
          endsHopeless_(endsHopeless) {
        connect();
        reactor_.every(20 * kMillisecond, [this] { beat(); });
    }

  private:
    void connect() {
        ChannelOptions options;
        options.credential = {rankIdentity(args_["--job"], {replica_, 0}, incarnation_), key_};
        connector_ =
            connectControl(reactor_, args_["--coordinator"], options, [this](auto channel) {
                if (!channel.ok()) return retry();
                channel_ = *std::move(channel);
                channel_->start(
                    [this](std::string bytes) {
                        if (auto m = decode<ToReplica>(bytes); m.ok()) feed(FromCoordinator{*m});
                    },
                    [this](const absl::Status&) { retry(); });
                Hello hello;
                hello.version = protocolVersion();
                hello.job = args_["--job"];
                hello.pid = ::getpid();
                hello.endpoint.rank = {replica_, 0};
                hello.endpoint.incarnation = incarnation_;
                hello.endpoint.host = args_["--node"];
                send(hello);
                feed(Connected{});
            });
    }
    void retry() {
        channel_.reset();
        feed(Disconnected{});
        reactor_.after(50 * kMillisecond, [this] { connect(); });
    }
    void send(const ToCoordinator& message) {
        if (channel_) (void)channel_->send(encode(message));
    }
    void beat() {
        send(Beat{
            {replica_, 0}, incarnation_, machine_.phase(), machine_.appliedStep(), ++progress_});
        feed(RankTick{});
    }
    void feed(const RankInput& input) {
        for (const RankAction& action : machine_.step(reactor_.now(), input))
            std::visit([this](const auto& a) { act(a); }, action);
    }
    void later(RankInput input, MonoNs delay = 0) {
        reactor_.after(delay, [this, input = std::move(input)] { feed(input); });
    }

    template <class Ignored>
    void act(const Ignored&) {}
    void act(const BuildReplica& a) {
        uint64_t step = 0;
        if (endsHopeless_) {
            // Acts like a rank whose model does not fit: it says why, closes its link, and takes
            // its time over the rest.
            send(RankHopeless{{replica_, 0}, incarnation_, "the model does not fit"});
            return reactor_.stop();
        }
        if (!a.welcome.resumeFrom.empty())
            if (const auto from = readManifest(diskFiles(), a.welcome.resumeFrom); from.ok())
                step = from->step;
        if (!a.formed.blank) hash_ = stateAfter(step);
        if (replica_ == 0) send(ModelDescribed{"scripted", 10, 10, 2, 1, 2, 1, {}, 0, {}});
        later(InitDone{!a.formed.blank, a.formed.blank ? 0 : step, hash_, a.welcome.layout});
    }
    void act(const BeginStep& a) {
        if (dieAt_ == "compute") ::raise(SIGKILL);
        later(ComputeDone{a.quorum.step, std::exchange(nan_, false)});
        ExchangeDone done;
        done.id = {a.quorum.step, a.quorum.epoch, a.quorum.attempt};
        done.complete = true;
        done.vote.gradSquares = 1;
        for (const SampleRange& r : a.ranges) done.vote.tokens += (r.end - r.begin) * 64;
        done.vote.lossSum = 2.0 * static_cast<double>(done.vote.tokens);
        done.vote.expertCounts = {done.vote.tokens, 1};
        later(done, kExchangeTakes);
    }
    void act(const ApplyCommit& a) {
        if (!a.record.skip) hash_ = stateAfter(a.record.step) ^ flip_;
        later(Applied{a.record.step, 0.1});
        last_ = a.record;
        if (a.checkpoint) writeCheckpoint(a.record.step);
    }
    void act(const HashState& a) { later(StateHashed{a.step, hash_, 0.01}); }
    void act(const WriteCheckpoint& a) { writeCheckpoint(a.step); }
    /// Writes a checkpoint of the smallest possible size.
    void writeCheckpoint(uint64_t step) {
        const std::string folder = args_["--run-dir"] + "/checkpoint-" + std::to_string(step) +
                                   "-r" + std::to_string(replica_) + "-i" +
                                   std::to_string(incarnation_);
        StateSnapshot state;
        state.last = last_;
        state.lineage = last_.lineage;
        state.step = step;
        state.hash = bulkhead_state_hash(nullptr, 0);
        CheckpointManifest manifest;
        manifest.job = args_["--job"];
        manifest.step = step;
        manifest.lineage = manifest.shards = 1;
        manifest.last = last_;
        const auto file = writeShardFile(diskFiles(), folder, 0, state);
        if (file.ok()) manifest.files.push_back(*file);
        const std::string path = writeManifest(diskFiles(), folder, manifest).value_or("");
        CheckpointDone done;
        done.replica = replica_;
        done.incarnation = incarnation_;
        done.step = step;
        done.path = path;
        done.bytes = 8;
        send(done);
    }
    void act(const TakeSnapshot& a) { later(SnapshotTaken{a.step}); }
    void act(const BeginFetch& a) {
        hash_ = stateAfter(a.fetch.snapshotStep);
        later(FetchDone{a.fetch.snapshotStep, hash_, a.fetch.layout}, kExchangeTakes);
    }
    void act(const ReplayCommit& a) {
        hash_ = stateAfter(a.record.step);
        later(Replayed{a.record.step});
    }
    void act(const JudgeReplay& a) { later(ReplayJudged{a.step, true, flip_ == 0}); }
    void act(const SendUp& a) { send(a.message); }
    void act(const SendLeader& a) {
        auto folded = fold_.add(a.message);
        if (folded.ok() && folded->has_value()) send(**folded);
    }
    void act(const InjectFault& a) {
        const CommitFault& fault = a.fault;
        send(FaultNoted{fault.fault,
                        {replica_, 0},
                        false,
                        reactor_.clock().unixNs(),
                        machine_.appliedStep() + 1});
        if (fault.kind == "kill_rank") dieAt_ = "compute";
        if (fault.kind == "nan_gradient") nan_ = true;
        if (fault.kind == "flip_parameter") flip_ = 4;
    }
    void act(const ExitRank& a) {
        std::cerr << a.why << "\n";
        std::_Exit(a.ok ? 0 : 3);
    }

    std::map<std::string, std::string> args_;
    Reactor& reactor_;
    int32_t replica_;
    uint32_t incarnation_;
    RankMachine machine_;
    ReplicaFold fold_;
    const Secret key_ = inheritSecrets().value().rank;
    std::unique_ptr<ControlConnector> connector_;
    std::unique_ptr<ControlChannel> channel_;
    uint64_t hash_ = 0;
    CommitRecord last_;
    uint64_t flip_ = 0;
    uint64_t progress_ = 0;
    bool nan_ = false;
    std::string dieAt_;
    bool endsHopeless_;
};

}  // namespace
}  // namespace bulkhead::runtime

int main(int argc, char** argv) {
    std::map<std::string, std::string> args;
    for (int i = 1; i + 1 < argc; i += 2) args[argv[i]] = argv[i + 1];
    std::string job;
    std::getline(std::ifstream(args["--job-file"]), job);
    // "hopeless": every rank; "hopeless-1": those of replica 1; "hopeless-linked": once linked.
    const auto isWorkload = [&](const std::string& name) {
        return job.find("\"workload\":\"" + name + "\"") != std::string::npos;
    };
    if (isWorkload("hopeless") || isWorkload("hopeless-" + args["--replica"])) {
        std::cerr << "10:00:00.000 critical layers must be a whole number" << std::endl;
        std::cerr << "10:00:00.001 warning somebody else is gone" << std::endl;
        return 5;
    }
    if (!bulkhead::runtime::holdLifeLock().ok()) return 1;
    const bulkhead::SystemClock clock;
    auto reactor = bulkhead::runtime::Reactor::create(clock);
    if (!reactor.ok()) return 1;
    std::cout << "scripted rank " << args["--replica"] << std::endl;
    const bool endsHopeless = isWorkload("hopeless-linked");
    {
        const bulkhead::runtime::ScriptedRank rank(args, **reactor, endsHopeless);
        (*reactor)->run();
    }
    if (endsHopeless) ::pause();
}
