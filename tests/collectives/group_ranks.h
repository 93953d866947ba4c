// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/runtime/collectives/group.h"
#include "backend/runtime/transport/address.h"
#include "backend/runtime/transport/shm_segment.h"

namespace bulkhead::runtime::testing {

/// The endpoints of one replica's ranks: hosts "a" for all, or alternating "a" and "b".
class GroupRanks {
  public:
    GroupRanks(size_t n, PeerChoice choice, bool twoHosts = false) : choice_(choice) {
        static std::atomic<int> serial{0};
        prefix_ = "bulkhead-group-" + std::to_string(::getpid()) + "-" + std::to_string(serial++);
        for (size_t i = 0; i < n; ++i) {
            listeners_.push_back(std::move(listenOn("127.0.0.1:0").value()));
            peers_.push_back({twoHosts && i % 2 ? "b" : "a", localAddress(listeners_[i].get()),
                              prefix_ + "-" + std::to_string(i)});
        }
    }
    ~GroupRanks() { removeSegments(prefix_); }

    GroupOptions options(size_t rank) const {
        GroupOptions options;
        options.name = "replica 0 incarnation 1";
        options.secret = Secret::ofText("group");
        options.rank = static_cast<int32_t>(rank);
        options.peers = peers_;
        options.transport = choice_;
        options.listenFd = listeners_[rank].get();
        options.roundBytes = 8192;  // small, so that every test takes several rounds
        options.clock = &clock_;
        return options;
    }

    /// `body(group)` on a thread for each rank.
    void run(const std::function<void(Group&)>& body) const {
        std::vector<std::thread> threads;
        for (size_t i = 0; i < peers_.size(); ++i)
            threads.emplace_back([&, i] { body(*makeGroup(options(i)).value()); });
        for (std::thread& t : threads) t.join();
    }

    size_t size() const { return peers_.size(); }
    const std::vector<GroupPeer>& peers() const { return peers_; }
    int listener(size_t i) const { return listeners_[i].get(); }

  private:
    const PeerChoice choice_;
    SystemClock clock_;
    std::string prefix_;
    std::vector<UniqueFd> listeners_;
    std::vector<GroupPeer> peers_;
};

}  // namespace bulkhead::runtime::testing
