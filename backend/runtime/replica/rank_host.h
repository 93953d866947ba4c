// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "backend/common/file_system.h"
#include "backend/runtime/ftar/exchange.h"
#include "backend/runtime/replica/state_wire.h"
#include "backend/runtime/transport/control_channel.h"

namespace bulkhead::runtime {

/// The port at which peers reach a rank's exchanges, for as long as this lives.
class DataPort {
  public:
    virtual ~DataPort() = default;
    virtual std::string address() const = 0;
    /// Listening there; stays the port's. -1: a simulation has none.
    virtual int listenFd() const = 0;
    /// The prefix of the names of its shared memory, which no other has.
    virtual std::string shm() const = 0;
};

/// The machine that a rank runs on. Inject it; a simulation has its own. Threads: any of the rank.
class RankHost {
  public:
    virtual ~RankHost() = default;
    virtual FileSystem& files() = 0;
    virtual Network& network() = 0;
    virtual StateNetwork& stateNetwork() = 0;
    /// Binds `ip` on a free port, and claims a prefix of shared memory's names, of which `rank` is
    /// a part for people to read. Unavailable naming what cannot be had.
    virtual absl::StatusOr<std::unique_ptr<DataPort>> openData(const std::string& ip,
                                                               const std::string& rank) = 0;
    /// Contract of makeExchange().
    virtual absl::StatusOr<std::unique_ptr<Exchange>> exchange(ExchangeOptions options) = 0;
    virtual int32_t pid() const = 0;
    /// SIGKILL or SIGSTOP to the rank's own process.
    virtual void signalSelf(int signal) = 0;
};

/// This machine; has no state.
RankHost& linuxRankHost();

}  // namespace bulkhead::runtime
