// SPDX-License-Identifier: Apache-2.0
// Upper bound of this machine: the additions and copies of a direct all-reduce over RANKS
// processes, shared out over the cores, with nobody waiting for anybody and nothing but memory.
#include <unistd.h>

#include <cstring>
#include <memory>
#include <thread>

#include "backend/runtime/ftar/reduction.h"
#include "backend/runtime/transport/stream_copy.h"
#include "contender.h"

namespace {

using namespace bulkhead;
using namespace bulkhead::bench;

struct Rank {
    std::unique_ptr<float[]> in, out;
};

/// The work of rank `self` from element `begin` to `end` of every slice.
void reduceSlice(const std::vector<Rank>& ranks, size_t self, size_t begin, size_t n) {
    std::vector<const float*> sources;
    for (const Rank& r : ranks) sources.push_back(r.in.get() + begin);
    runtime::sumInOrder(sources, ranks[self].out.get() + begin, n);
}

}  // namespace

int main(int argc, char** argv) {
    const Task task = taskOf(argc, argv);
    const auto n = static_cast<size_t>(task.ranks);
    const size_t cores =
        std::min(n, static_cast<size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))));
    std::vector<Rank> ranks(n);
    for (size_t r = 0; r < n; ++r) {
        ranks[r].in = std::make_unique<float[]>(task.count);
        ranks[r].out = std::make_unique<float[]>(task.count);
        fill(ranks[r].in.get(), task.count, static_cast<int>(r));
    }
    const size_t slice = task.count / n;
    const auto copy = [&](float* to, const float* from, size_t bytes) {
        if (slice * sizeof(float) >= runtime::kStreamFrom)
            runtime::streamCopy(reinterpret_cast<std::byte*>(to),
                                reinterpret_cast<const std::byte*>(from), bytes);
        else
            std::memcpy(to, from, bytes);
    };
    const auto work = [&](size_t core) {
        // A megabyte at a time, as if all ranks went through the buffer together.
        const size_t piece = std::min(slice, size_t{1} << 16);
        for (size_t at = 0; at < slice; at += piece) {
            const size_t count = std::min(piece, slice - at);
            for (size_t r = core; r < n; r += cores) reduceSlice(ranks, r, r * slice + at, count);
            for (size_t r = core; r < n; r += cores)
                for (size_t owner = 0; owner < n; ++owner)
                    if (owner != r)
                        copy(ranks[r].out.get() + owner * slice + at,
                             ranks[owner].out.get() + owner * slice + at, count * sizeof(float));
        }
    };
    const std::vector<double> ms = timed(task, [&] {
        std::vector<std::thread> threads;
        for (size_t c = 1; c < cores; ++c) threads.emplace_back(work, c);
        work(0);
        for (std::thread& t : threads) t.join();
    });
    print(ms);
}
