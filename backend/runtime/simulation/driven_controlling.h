// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/runtime/coordinator/controller.h"
#include "backend/runtime/simulation/driven_job.h"
#include "backend/runtime/transport/reactor.h"

/// One life of the controller: what DrivenJob's files share of it.
namespace bulkhead::simulation {

inline constexpr const char* kRun = "sim";
inline constexpr const char* kToken = "token";
/// 2026-01-01, so that dates in stories look like dates.
inline constexpr int64_t kEpochNs = 1'767'225'600 * kSecond;

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
        runtime::Reactor&, const std::string& address, runtime::AcceptChannel to) override {
        accept = std::move(to);
        return std::make_unique<Listener>(address);
    }
    std::unique_ptr<runtime::ControlConnector> connect(runtime::Reactor&, const std::string&,
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

struct DrivenJob::Controlling {
    Controlling(const MonoNs& now, MonoNs zero, double rate, MemoryDisk& disk,
                RunDatabase& database, uint64_t seed)
        : clock(now, zero, rate),
          reactor(*runtime::Reactor::create(clock)),
          files(disk),
          history(database, files, *reactor, seed) {}

    DriftingClock clock;
    std::unique_ptr<runtime::Reactor> reactor;
    DiskUser files;
    ListeningNetwork network;
    DrivenHistory history;
    std::unique_ptr<runtime::Controller> controller;
    const CoordinatorMachine* machine = nullptr;
    std::vector<std::shared_ptr<MemoryChannel::Wire>> wires;  ///< it is at end 1 of each
    std::deque<model::Action> asked;                          ///< by the operator
    bool dying = false;  ///< in one of its next file operations
    bool dead = false;
    bool losesPower = false;
    bool acted = false;
    MonoNs stoppedUntil = 0;
    MonoNs runsAt = 0;  ///< 0: nothing is due
};

}  // namespace bulkhead::simulation
