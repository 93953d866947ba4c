// SPDX-License-Identifier: Apache-2.0
// Bulkhead's exchange. Built a second time without fault tolerance (fault_tolerance.h), where the
// sum may also take the place of the input.
#include <string>

#include "backend/runtime/transport/fault_tolerance.h"
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
    auto* out = runtime::kFaultTolerant || setting.has("retained")
                    ? static_cast<float*>(heap.allocate(task.count * sizeof(float)).value())
                    : in;
    fill(in, task.count, self);
    mustBeOk((*exchange)->configure(setting.group(self, 1)));
    const auto reduce = [&] {
        mustBeOk((*exchange)->reduce(0, {in, task.count}, {out, task.count}));
    };
    reduce();
    check(out, task);
    const std::vector<double> ms = timed(task, reduce);
    if (self == 0) print(ms);
    // Nobody leaves before all have their sums: an end would be a reset to a slower rank.
    auto* last = static_cast<float*>(heap.allocate(64).value());
    mustBeOk((*exchange)->reduce(1, {last, 8}, {last + 8, 8}));
}

}  // namespace

int main(int argc, char** argv) {
    const Task task = taskOf(argc, argv);
    const Setting setting(task.ranks, argc > 4 ? argv[4] : "shm");
    return onRanks(task.ranks, [&](int self) { rank(self, task, setting); });
}
