// SPDX-License-Identifier: Apache-2.0
// Time that reduce() still takes after abort(), told at a random moment of an exchange, as the
// milliseconds of all ranks' exchanges that were running then. Arguments as ours.cpp has them.
#include <mutex>
#include <random>
#include <thread>

#include "contender.h"
#include "ranks.h"

namespace {

using namespace bulkhead;
using namespace bulkhead::bench;

void rank(int self, const Task& task, const Setting& setting) {
    SystemClock clock;
    runtime::SharedHeap heap;
    auto exchange = runtime::makeExchange(setting.options(self, clock, heap));
    mustBeOk(exchange.status());
    auto* in = static_cast<float*>(heap.allocate(task.count * sizeof(float)).value());
    auto* out = static_cast<float*>(heap.allocate(task.count * sizeof(float)).value());
    fill(in, task.count, self);
    std::mt19937_64 random(4711);  // equal at all: they are told at about the same time
    double usual = 0;
    std::vector<double> ms;
    for (int i = 0; i <= task.iterations; ++i) {
        const runtime::ExchangeGroup group = setting.group(self, static_cast<uint64_t>(i + 1));
        mustBeOk((*exchange)->configure(group));
        const MonoNs start = clock.now();
        const double fraction = static_cast<double>(random() % 1000) / 1000;
        MonoNs told = 0;
        std::thread teller([&] {
            if (i == 0) return;
            std::this_thread::sleep_for(
                std::chrono::duration<double, std::milli>(usual * fraction));
            told = clock.now();
            (*exchange)->abort(group.key, "bench");
        });
        const absl::Status status = (*exchange)->reduce(0, {in, task.count}, {out, task.count});
        const MonoNs end = clock.now();
        teller.join();
        if (i == 0) {
            mustBeOk(status);
            usual = inMs(end - start);
        } else if (absl::IsAborted(status)) {
            ms.push_back(inMs(std::max<MonoNs>(0, end - told)));
        }
    }
    print(ms);
}

}  // namespace

int main(int argc, char** argv) {
    const Task task = taskOf(argc, argv);
    const Setting setting(task.ranks, argc > 4 ? argv[4] : "shm");
    return onRanks(task.ranks, [&](int self) { rank(self, task, setting); });
}
