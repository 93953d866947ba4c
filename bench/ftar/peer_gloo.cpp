// SPDX-License-Identifier: Apache-2.0
// Gloo's ring over TCP, what torch.distributed uses on CPUs. Forks its own ranks; they meet in a
// folder, the fourth argument.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "contender.h"

namespace {

using namespace bulkhead::bench;

void rank(int self, const Task& task, const char* folder) {
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(self, task.ranks);
    context->connectFullMesh(store, device);
    std::vector<float> in(task.count), out(task.count);
    fill(in.data(), task.count, self);
    const std::vector<double> ms = timed(task, [&] {
        gloo::AllreduceOptions options(context);
        options.setInput(in.data(), task.count);
        options.setOutput(out.data(), task.count);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        options.setReduceFunction([](void* to, const void* a, const void* b, size_t n) {
            auto* t = static_cast<float*>(to);
            const auto* x = static_cast<const float*>(a);
            const auto* y = static_cast<const float*>(b);
            for (size_t i = 0; i < n; ++i) t[i] = x[i] + y[i];
        });
        gloo::allreduce(options);
    });
    check(out.data(), task);
    gloo::BarrierOptions barrier(context);
    gloo::barrier(barrier);
    if (self == 0) print(ms);
}

}  // namespace

int main(int argc, char** argv) {
    const Task task = taskOf(argc, argv);
    if (argc < 5) return 2;
    for (int r = 1; r < task.ranks; ++r) {
        if (fork() != 0) continue;
        rank(r, task, argv[4]);
        _exit(0);
    }
    rank(0, task, argv[4]);
    int worst = 0;
    for (int status = 0; wait(&status) > 0;) worst |= status;
    return worst == 0 ? 0 : 1;
}
