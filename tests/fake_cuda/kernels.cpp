// SPDX-License-Identifier: Apache-2.0
// The kernels of plugins/cuda/kernels.cu, run by threads.
#include "plugins/cuda/kernels.h"

#include <memory>
#include <thread>
#include <vector>

#include "tests/cuda/thread_machine.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace bulkhead::cuda {
namespace {

using fake_cuda::Kernel;

template <class T>
T argument(void** arguments, int i) {
    return *static_cast<T*>(arguments[i]);
}

constexpr uint64_t kThreads = 2;  // of a block: processors are few

void serveLanes(Queue* queue, uint64_t run, unsigned blocks) {
    const std::function<void()> atSync;
    std::vector<std::thread> threads;
    for (uint64_t lane = 0; lane < blocks; ++lane) {
        auto shared = std::make_shared<testing::ThreadBlock::Shared>(kThreads);
        for (uint64_t t = 0; t < kThreads; ++t)
            threads.emplace_back([=, &atSync] {
                testing::ThreadBlock block(*shared, lane, t, kThreads, &atSync);
                serve(block, queue, run);
            });
    }
    for (std::thread& t : threads) t.join();
}

template <class T>
void addPlain(T* to, const Sources& from, uint32_t sources, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        T total = static_cast<const T*>(from.at[0])[i];
        for (uint32_t s = 1; s < sources; ++s)
            total = static_cast<T>(total + static_cast<const T*>(from.at[s])[i]);
        to[i] = total;
    }
}

template <class T>
const void* plain() {
    static const Kernel kernel{[](unsigned, void** arguments) -> std::function<void()> {
        return
            [to = argument<void*>(arguments, 0), from = argument<Sources>(arguments, 1),
             sources = argument<uint32_t>(arguments, 2), count = argument<size_t>(arguments, 3)] {
                addPlain(static_cast<T*>(to), from, sources, count);
            };
    }};
    return &kernel;
}

}  // namespace

const void* ftarKernel() {
    static const Kernel kernel{[](unsigned blocks, void** arguments) -> std::function<void()> {
        return [blocks, queue = argument<Queue*>(arguments, 0),
                run = argument<uint64_t>(arguments, 1)] { serveLanes(queue, run, blocks); };
    }};
    return &kernel;
}

const void* sumKernel() {
    static const Kernel kernel{[](unsigned, void** arguments) -> std::function<void()> {
        return [sum = argument<Sum>(arguments, 0)] { add(sum, 0, 1); };
    }};
    return &kernel;
}

const void* plainSumKernel(bulkhead_dtype type) {
    return type == BULKHEAD_F64   ? plain<double>()
           : type == BULKHEAD_I32 ? plain<uint32_t>()
                                  : plain<uint8_t>();
}

}  // namespace bulkhead::cuda
