// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"

/// Hosts of a cluster as namespaces of this machine: each has a network, processes and a /dev/shm
/// of its own, and one address. What they send each other passes through a switch in this process,
/// which loses, delays or keeps it. All of it is gone with this process.
namespace bulkhead::testing {

class Hosts {
  public:
    /// The switch does this to packets.
    struct Link {
        std::chrono::milliseconds delay{0};
        double loss = 0;  ///< share of packets
        bool cut = false;
    };

    /// Unavailable, with the reason, where the kernel does not let this user make them.
    static absl::StatusOr<std::unique_ptr<Hosts>> make(size_t count, uint64_t seed);
    ~Hosts();

    size_t count() const { return hosts_.size(); }
    static std::string addressOf(size_t host);
    /// A command line begins with this to run there.
    std::vector<std::string> inside(size_t host) const;

    /// One way. Thread: any, as those below.
    void link(size_t from, size_t to, Link link);
    /// Both ways between that host and all others.
    void linkAll(size_t host, Link link);
    void everywhere(Link link);
    uint64_t passed() const;  ///< packets

  private:
    struct Host {
        pid_t pid = 0;     ///< of its first process, as seen from here
        pid_t parent = 0;  ///< the process that ends it
        UniqueFd packets;  ///< its only interface
    };
    using Time = std::chrono::steady_clock::time_point;

    explicit Hosts(uint64_t seed) : random_(seed) {}
    static absl::StatusOr<Host> start(size_t index);
    void pass();
    void take(size_t from);

    std::vector<Host> hosts_;
    UniqueFd wake_;
    mutable Mutex mutex_;
    std::map<std::pair<size_t, size_t>, Link> links_ ABSL_GUARDED_BY(mutex_);
    uint64_t passed_ ABSL_GUARDED_BY(mutex_) = 0;
    std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
    std::multimap<Time, std::pair<size_t, std::string>> underWay_;  ///< to whom; the switch's alone
    std::thread switch_;
};

}  // namespace bulkhead::testing
