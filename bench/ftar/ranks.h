// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "backend/runtime/ftar/exchange.h"
#include "backend/runtime/transport/address.h"

/// Ranks of Bulkhead's exchange, a process each, as a worker has them.
namespace bulkhead::bench {

/// The fifth argument, words with commas between them: shm (read in place), slots (shm without
/// that), tcp, hosts (two of them, members alternate); ring, tiers, else direct; bfloat16, else
/// float32; two, four: so many connections per pair; unsummed: payloads are not protected;
/// encrypted: they are; retained: the bare build keeps the input too.
class Setting {
  public:
    Setting(int ranks, const std::string& words) {
        std::stringstream in(words);
        for (std::string word; std::getline(in, word, ',');) words_.push_back(word);
        for (int r = 0; r < ranks; ++r) {
            listeners_.push_back(std::move(runtime::listenOn("127.0.0.1:0").value()));
            peers_.push_back(
                {r, 1, has("hosts") ? "host" + std::to_string(r % 2) : "host",
                 runtime::localAddress(listeners_.back().get()),
                 "bulkhead-bench-" + std::to_string(getpid()) + "-" + std::to_string(r)});
        }
    }

    bool has(const std::string& word) const {
        return std::find(words_.begin(), words_.end(), word) != words_.end();
    }

    runtime::ExchangeOptions options(int rank, const Clock& clock,
                                     const runtime::SharedHeap& heap) const {
        runtime::ExchangeOptions options;
        options.job = "bench";
        options.replica = rank;
        options.incarnation = 1;
        options.listenFd = listeners_[static_cast<size_t>(rank)].get();
        options.clock = &clock;
        options.protection = has("unsummed")    ? runtime::Protection::kNone
                             : has("encrypted") ? runtime::Protection::kEncrypted
                                                : runtime::Protection::kReadable;
        if (!has("slots")) options.heap = &heap;
        return options;
    }

    runtime::ExchangeGroup group(int rank, uint64_t step) const {
        runtime::ExchangeGroup group;
        group.key = {1, step, step, 1};
        group.secret = Secret::ofText("bench");
        group.self = rank;
        group.peers = peers_;
        group.transport = has("tcp") || has("ring") ? runtime::PeerChoice::kTcp
                          : has("hosts")            ? runtime::PeerChoice::kAuto
                                                    : runtime::PeerChoice::kShm;
        group.wire = has("bfloat16") ? runtime::WireType::kBfloat16 : runtime::WireType::kFloat32;
        group.algorithm = has("ring")    ? runtime::Algorithm::kRing
                          : has("tiers") ? runtime::Algorithm::kHierarchical
                                         : runtime::Algorithm::kDirect;
        group.connections = has("four") ? 4 : has("two") ? 2 : 1;
        group.connectTimeout = 60 * kSecond;
        group.chunkTimeout = 60 * kSecond;
        return group;
    }

  private:
    std::vector<std::string> words_;
    std::vector<UniqueFd> listeners_;
    std::vector<runtime::ExchangePeer> peers_;
};

inline void mustBeOk(const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
}

/// `body` in a process of its own for each rank, rank 0 in this one. The exit status of main.
template <class Body>
int onRanks(int ranks, Body&& body) {
    for (int r = 1; r < ranks; ++r) {
        if (fork() != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        body(r);
        _exit(0);
    }
    body(0);
    int worst = 0;
    for (int status = 0; wait(&status) > 0;) worst |= status;
    return worst == 0 ? 0 : 1;
}

}  // namespace bulkhead::bench
