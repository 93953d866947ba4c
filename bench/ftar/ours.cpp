// SPDX-License-Identifier: Apache-2.0
// Bulkhead's exchange: as a worker uses it, one process a rank. Further arguments: shm, slots (shm
// without reading gradients in place) or tcp.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string_view>

#include "backend/runtime/ftar/exchange.h"
#include "backend/runtime/transport/address.h"
#include "contender.h"

namespace {

using namespace bulkhead;
using namespace bulkhead::bench;

struct Setting {
    std::string wire = "shm";
    std::vector<runtime::UniqueFd> listeners;
    std::vector<runtime::ExchangePeer> peers;
};

void fail(const absl::Status& status) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
}

void rank(int self, const Task& task, const Setting& setting) {
    const auto me = static_cast<size_t>(self);
    SystemClock clock;
    runtime::SharedHeap heap;
    runtime::ExchangeOptions options;
    options.job = "bench";
    options.replica = setting.peers[me].replica;
    options.incarnation = setting.peers[me].incarnation;
    options.listenFd = setting.listeners[me].get();
    options.clock = &clock;
    if (setting.wire != "slots") options.heap = &heap;
    auto exchange = runtime::makeExchange(options);
    if (!exchange.ok()) fail(exchange.status());
    auto* in = static_cast<float*>(heap.allocate(task.count * sizeof(float)).value());
    auto* out = static_cast<float*>(heap.allocate(task.count * sizeof(float)).value());
    fill(in, task.count, self);
    runtime::ExchangeGroup group;
    group.key = {1, 1, 1, 1};
    group.token = 4711;
    group.self = self;
    group.peers = setting.peers;
    group.transport = setting.wire == "tcp" ? runtime::PeerChoice::kTcp : runtime::PeerChoice::kShm;
    group.connectTimeout = 60 * kSecond;
    group.chunkTimeout = 60 * kSecond;
    if (absl::Status s = (*exchange)->configure(group); !s.ok()) fail(s);
    const std::vector<double> ms = timed(task, [&] {
        if (absl::Status s = (*exchange)->reduce(0, {in, task.count}, {out, task.count}); !s.ok())
            fail(s);
    });
    check(out, task);
    if (self == 0) print(ms);
    // Nobody leaves before all have their sums: an end would be a reset to a slower rank.
    auto* last = static_cast<float*>(heap.allocate(64).value());
    if (absl::Status s = (*exchange)->reduce(1, {last, 8}, {last + 8, 8}); !s.ok()) fail(s);
}

}  // namespace

int main(int argc, char** argv) {
    const Task task = taskOf(argc, argv);
    Setting setting;
    if (argc > 4) setting.wire = argv[4];
    for (int r = 0; r < task.ranks; ++r) {
        setting.listeners.push_back(std::move(runtime::listenOn("127.0.0.1:0").value()));
        setting.peers.push_back(
            {r, 1, "host", runtime::localAddress(setting.listeners.back().get()),
             "bulkhead-bench-" + std::to_string(getpid()) + "-" + std::to_string(r)});
    }
    for (int r = 1; r < task.ranks; ++r) {
        if (fork() != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rank(r, task, setting);
        _exit(0);
    }
    rank(0, task, setting);
    int worst = 0;
    for (int status = 0; wait(&status) > 0;) worst |= status;
    return worst == 0 ? 0 : 1;
}
