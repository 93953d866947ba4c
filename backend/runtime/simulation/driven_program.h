// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/runtime/agent/agent.h"
#include "backend/runtime/agent/host.h"
#include "backend/runtime/coordinator/controller.h"
#include "backend/runtime/simulation/driven_job.h"
#include "backend/runtime/transport/reactor.h"

/// One life of a program that runs the real programs: what DrivenJob's files share of it.
namespace bulkhead::simulation {

inline constexpr const char* kRun = "sim";
inline constexpr const char* kToken = "token";
/// 2026-01-01, so that dates in stories look like dates.
inline constexpr int64_t kEpochNs = 1'767'225'600 * kSecond;

/// A node's number at the shared storage; the controller's machine is 0.
inline uint32_t machineOf(size_t node) {
    return static_cast<uint32_t>(node) + 1;
}

/// A kill that waits for a file operation does not wait longer.
inline constexpr MonoNs kDyingWithin = 30 * kMillisecond;
/// Times from the first attempt to connect: the kernel repeats its SYN, and gives up.
inline constexpr MonoNs kSynAgain[] = {0, kSecond, 3 * kSecond};
inline constexpr MonoNs kConnectTimeout = 5 * kSecond;

inline std::string nodeName(size_t node) {
    return absl::StrCat("node", node);
}

/// Virtual time as one machine's clock shows it.
class DriftingClock final : public Clock {
  public:
    DriftingClock(const MonoNs& now, MonoNs zero, double rate)
        : now_(now), zero_(zero), rate_(rate) {}
    MonoNs now() const override {
        return zero_ + static_cast<MonoNs>(static_cast<double>(now_) * rate_);
    }
    int64_t unixNs() const override { return kEpochNs + now_; }
    /// The first moment at which it shows `local`.
    MonoNs globalOf(MonoNs local) const {
        return static_cast<MonoNs>(static_cast<double>(local - zero_) / rate_) + 2;
    }

  private:
    const MonoNs& now_;
    const MonoNs zero_;
    const double rate_;
};

/// The network of a controller, which only listens.
class ListeningNetwork final : public runtime::Network {
  public:
    runtime::AcceptChannel accept;  ///< empty: connections are refused

    absl::StatusOr<std::unique_ptr<runtime::ControlListener>> listen(
        runtime::Reactor&, const std::string& address, runtime::ChannelOptions,
        runtime::AcceptChannel to) override {
        accept = std::move(to);
        return std::make_unique<Listener>(address);
    }
    std::unique_ptr<runtime::ControlConnector> connect(runtime::Reactor&, const std::string&,
                                                       runtime::ChannelOptions,
                                                       runtime::ConnectedChannel) override {
        return nullptr;
    }

  private:
    class Listener final : public runtime::ControlListener {
      public:
        explicit Listener(std::string address) : address_(std::move(address)) {}
        std::string address() const override { return address_; }

      private:
        const std::string address_;
    };
};

/// The network of an agent, which only connects.
class ConnectingNetwork final : public runtime::Network {
  public:
    /// Calls `done` later, as connectControl() does, unless it is gone by then.
    std::function<void(std::weak_ptr<runtime::ConnectedChannel> done)> dial;

    absl::StatusOr<std::unique_ptr<runtime::ControlListener>> listen(
        runtime::Reactor&, const std::string&, runtime::ChannelOptions,
        runtime::AcceptChannel) override {
        return absl::UnimplementedError("an agent does not listen");
    }
    std::unique_ptr<runtime::ControlConnector> connect(runtime::Reactor&, const std::string&,
                                                       runtime::ChannelOptions options,
                                                       runtime::ConnectedChannel done) override {
        auto attempt = std::make_unique<Attempt>();
        attempt->done = std::make_shared<runtime::ConnectedChannel>(
            introduced(options.credential, std::move(done)));
        dial(attempt->done);
        return attempt;
    }

  private:
    struct Attempt final : runtime::ControlConnector {
        std::shared_ptr<runtime::ConnectedChannel> done;
    };
};

struct DrivenJob::Program {
    Program(std::string called, const MonoNs& now, MonoNs zero, double rate, MemoryDisk& disk)
        : name(std::move(called)),
          clock(now, zero, rate),
          reactor(*runtime::Reactor::create(clock)),
          files(disk) {}
    virtual ~Program() = default;
    /// Called whenever its reactor has been run.
    virtual void looked() {}
    /// Destroys what runs in it, when nothing of that is on the stack.
    virtual void clear() = 0;

    /// A connection of which it is one end.
    struct Connection {
        std::shared_ptr<MemoryChannel::Wire> wire;
        int side = 0;
        MemoryChannel* end() const { return wire->ends[side]; }
    };

    const std::string name;
    DriftingClock clock;
    std::unique_ptr<runtime::Reactor> reactor;
    DiskUser files;
    std::vector<Connection> connections;
    bool dying = false;  ///< in one of its next file operations
    bool dead = false;
    bool losesPower = false;
    MonoNs stoppedUntil = 0;
    MonoNs runsAt = 0;  ///< 0: nothing is due
};

struct DrivenJob::Controlling final : Program {
    Controlling(DrivenJob& of, MonoNs zero, uint64_t seed)
        : Program("controller", of.now_, zero, of.coordinatorRate_, of.disk_),
          job(of),
          history(of.database_, files, *reactor, seed) {}
    void looked() override;
    void clear() override { controller.reset(); }

    DrivenJob& job;
    ListeningNetwork network;
    DrivenHistory history;
    std::unique_ptr<runtime::Controller> controller;
    const CoordinatorMachine* machine = nullptr;
    std::deque<model::Action> asked;  ///< by the operator
    bool acted = false;
};

/// The machine of a simulated node as its agent sees it: its processes are the ranks.
class DrivenJob::NodeHost final : public runtime::Host {
  public:
    NodeHost(DrivenJob& job, size_t node, Program& agent) : job_(job), node_(node), agent_(agent) {}

    absl::StatusOr<std::unique_ptr<runtime::HostProcess>> start(
        const runtime::StartRank& command, const std::string& output,
        runtime::ProcessWatcher watcher) override;
    absl::StatusOr<std::unique_ptr<runtime::HostProcess>> find(
        const runtime::RegisteredRank& rank, const std::string& output,
        runtime::ProcessWatcher watcher) override;
    void sample(std::function<void(runtime::HostFigures)> done) override;

    /// It ends by a signal, and is not gone yet.
    void died(int32_t pid, int32_t signal);
    void gone(int32_t pid, const KernelProcess& process);
    void printed(int32_t pid, bool isStderr, const std::string& line);

  private:
    class Handle;
    Handle* handleOf(int32_t pid) const;

    DrivenJob& job_;
    const size_t node_;
    Program& agent_;
    std::map<int32_t, Handle*> handles_;  ///< by pid
};

/// One life of an agent.
struct DrivenJob::Agenting final : Program {
    Agenting(DrivenJob& of, size_t onNode, MonoNs zero, MemoryDisk& disk)
        : Program(absl::StrCat(nodeName(onNode), "'s agent"), of.now_, zero, of.nodeRate(onNode),
                  disk),
          job(of),
          node(onNode),
          host(of, onNode, *this) {}
    void looked() override;
    void clear() override { agent.reset(); }

    DrivenJob& job;
    const size_t node;
    ConnectingNetwork network;
    NodeHost host;
    std::unique_ptr<runtime::Agent> agent;
};

}  // namespace bulkhead::simulation
