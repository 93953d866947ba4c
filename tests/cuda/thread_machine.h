// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "backend/common/threads.h"
#include "plugins/cuda/ftar/kernel_body.h"
#include "plugins/cuda/ftar/machine.h"
#include "tests/support/barrier.h"

namespace bulkhead::cuda::testing {

/// The memory of all ranks of a test, as a driver knows it. What one rank maps of another is a
/// mapping of its own, which cannot be touched any more once it is unmapped. Threads: any.
class World {
  public:
    World() = default;
    ~World() {
        for (const Block& b : blocks_) {
            ::munmap(b.base, b.bytes);
            ::close(b.fd);
        }
        for (const Machine::Block& b : mapped_) ::munmap(b.base, b.bytes);
    }
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    /// Memory of rank `process` that peers may map; zeroed.
    std::byte* allocate(uint64_t process, size_t bytes) {
        Block block{process, nullptr, bytes, ::memfd_create("rank", MFD_CLOEXEC)};
        if (::ftruncate(block.fd, static_cast<off_t>(bytes)) != 0) std::abort();
        block.base = see(block.fd, bytes);
        const MutexLock lock(mutex_);
        blocks_.push_back(block);
        return block.base;
    }
    float* floats(uint64_t process, size_t count) {
        return reinterpret_cast<float*>(allocate(process, count * sizeof(float)));
    }

    absl::StatusOr<Place> place(uint64_t process, const void* memory, size_t bytes) {
        const auto* at = static_cast<const std::byte*>(memory);
        const MutexLock lock(mutex_);
        for (const Block& b : blocks_)
            if (b.process == process && at >= b.base && at + bytes <= b.base + b.bytes) {
                Place place;
                place.process = process;
                place.base = reinterpret_cast<uint64_t>(b.base);
                place.offset = static_cast<uint64_t>(at - b.base);
                return place;
            }
        return absl::InvalidArgumentError("not in memory that peers may map");
    }

    absl::StatusOr<Machine::Block> map(const Place& place) {
        const MutexLock lock(mutex_);
        for (const Block& b : blocks_)
            if (b.process == place.process && reinterpret_cast<uint64_t>(b.base) == place.base) {
                mapped_.push_back({see(b.fd, b.bytes), b.bytes});
                ++live_;
                ++maps_;
                return mapped_.back();
            }
        return absl::UnavailableError("the block is gone");
    }
    void unmap(const Machine::Block& block) {
        ::mprotect(block.base, block.bytes, PROT_NONE);
        const MutexLock lock(mutex_);
        --live_;
    }

    int live() const {
        const MutexLock lock(mutex_);
        return live_;
    }
    /// Number of mappings made.
    int maps() const {
        const MutexLock lock(mutex_);
        return maps_;
    }
    /// Returns whether this process may read there; asks the kernel, so that a no does not crash.
    static bool readable(const void* at) {
        int ends[2];
        if (::pipe(ends) != 0) std::abort();
        const bool is = ::write(ends[1], at, 1) == 1;
        ::close(ends[0]);
        ::close(ends[1]);
        return is;
    }

  private:
    struct Block {
        uint64_t process;
        std::byte* base;
        size_t bytes;
        int fd;
    };
    static std::byte* see(int fd, size_t bytes) {
        void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) std::abort();
        return static_cast<std::byte*>(at);
    }
    mutable Mutex mutex_;
    std::vector<Block> blocks_ ABSL_GUARDED_BY(mutex_);
    std::vector<Machine::Block> mapped_ ABSL_GUARDED_BY(mutex_);
    int live_ ABSL_GUARDED_BY(mutex_) = 0, maps_ ABSL_GUARDED_BY(mutex_) = 0;
};

/// Replaces a GPU block as the argument of serve(); threads run it.
class ThreadBlock {
  public:
    struct Shared {
        /// The ring holds not-a-numbers at first, so that nobody counts on zeros.
        explicit Shared(uint64_t threads)
            : barrier(threads), ring(threads * detail::kRing / detail::kSlot) {
            std::memset(static_cast<void*>(ring.data()), 0xff, ring.size() * sizeof(Slot));
        }
        struct alignas(detail::kSlot) Slot {
            char bytes[detail::kSlot];
        };
        support::Barrier barrier;
        BlockShared shared{};
        std::vector<Slot> ring;
    };
    ThreadBlock(Shared& shared, uint64_t lane, uint64_t thread, uint64_t threads,
                const std::function<void()>* atSync)
        : shared_(shared), lane_(lane), thread_(thread), threads_(threads), atSync_(atSync) {}
    uint64_t lane() const { return lane_; }
    uint64_t thread() const { return thread_; }
    uint64_t threads() const { return threads_; }
    BlockShared* shared() { return &shared_.shared; }
    char* ring() { return shared_.ring.front().bytes; }
    /// No reads of other threads' memory may be pending at a barrier.
    void sync() {
        for (const auto& batch : batches_)
            if (!batch.empty()) std::abort();
        if (lane_ == 0 && thread_ == 0 && *atSync_) (*atSync_)();
        shared_.barrier.meet();
    }

    /// Delays the copy as long as allowed: until await() needs it.
    template <uint32_t kBytes>
    void fetch(void* to, const void* from) {
        for (const void* at : {static_cast<const void*>(to), from})
            if (reinterpret_cast<uintptr_t>(at) % kBytes != 0) std::abort();
        fetches_.push_back({to, from, kBytes});
    }
    void sent() { batches_.push_back(std::exchange(fetches_, {})); }
    template <uint32_t kBatches>
    void await() {
        for (; batches_.size() > kBatches; batches_.pop_front())
            for (const Fetch& fetch : batches_.front())
                std::memcpy(fetch.to, fetch.from, fetch.bytes);
    }

  private:
    struct Fetch {
        void* to;
        const void* from;
        size_t bytes;
    };
    Shared& shared_;
    const uint64_t lane_, thread_, threads_;
    const std::function<void()>* atSync_;
    std::vector<Fetch> fetches_;
    std::deque<std::vector<Fetch>> batches_;
};

/// Threads in the kernel's place: the same serve() that nvcc compiles. Several threads a block, so
/// that a missing barrier is a race that ThreadSanitizer sees.
class ThreadMachine : public Machine {
  public:
    ThreadMachine(World& world, uint64_t process, uint64_t threads = 2)
        : world_(world), process_(process), threads_(threads) {}
    ~ThreadMachine() override { join(); }

    absl::StatusOr<void*> allocatePinned(size_t bytes) override {
        const size_t whole = (bytes + 127) / 128 * 128;
        void* memory = std::aligned_alloc(128, whole);
        std::memset(memory, 0, whole);
        return memory;
    }
    void freePinned(void* memory) override {
        join();
        std::free(memory);
    }

    absl::Status launch(Queue* queue, uint32_t blocks, uint64_t run) override {
        join();
        ++launches;
        blocksLaunched = blocks;
        launched = queue;
        for (uint64_t lane = 0; lane < blocks; ++lane) {
            auto shared = std::make_shared<ThreadBlock::Shared>(threads_);
            for (uint64_t t = 0; t < threads_; ++t)
                kernel_.emplace_back([this, shared, queue, lane, t, run] {
                    ThreadBlock block(*shared, lane, t, threads_, &atSync);
                    serve(block, queue, run);
                });
        }
        return absl::OkStatus();
    }
    absl::Status health() override { return absl::OkStatus(); }

    absl::StatusOr<Place> place(const void* memory, size_t bytes) override {
        return world_.place(process_, memory, bytes);
    }
    absl::StatusOr<Block> map(const Place& place) override { return world_.map(place); }
    void unmap(const Block& block) override { world_.unmap(block); }
    void membersMet() override { ++meetings; }

    /// Called by the first thread of block 0 wherever that block's threads meet. Set between runs.
    std::function<void()> atSync;
    std::atomic<int> launches = 0, meetings = 0;
    std::atomic<uint32_t> blocksLaunched = 0;  ///< by the last of them
    std::atomic<Queue*> launched = nullptr;    ///< likewise

  private:
    void join() {
        for (std::thread& t : kernel_) t.join();
        kernel_.clear();
    }
    World& world_;
    const uint64_t process_, threads_;
    std::vector<std::thread> kernel_;
};

}  // namespace bulkhead::cuda::testing
