// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "plugins/cuda/ftar/machine.h"

namespace bulkhead::testing {

/// Device memory of this process. What an allocation returns is an address that nobody can touch,
/// so that a CPU that does is ended; the device itself works at another address of the same memory.
/// Other processes find a block through /proc, while its owner lives: nothing is left of a killed
/// one. Threads: any.
class FakeMemory {
  public:
    static FakeMemory& ofThisProcess() {
        static FakeMemory memory;
        return memory;
    }

    void* allocate(size_t bytes) {
        Block block;
        block.bytes = (bytes + kPage - 1) / kPage * kPage;
        block.fd = ::memfd_create("device", MFD_CLOEXEC);
        if (block.fd < 0 || ::ftruncate(block.fd, static_cast<off_t>(block.bytes)) != 0)
            return nullptr;
        block.work = map(block.fd, block.bytes, PROT_READ | PROT_WRITE);
        void* shown = ::mmap(nullptr, block.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block.work == nullptr || shown == MAP_FAILED) return nullptr;
        const MutexLock lock(mutex_);
        block.number = ++numbers_;
        blocks_[static_cast<std::byte*>(shown)] = block;
        return shown;
    }

    /// False when it is none of ours.
    bool release(void* memory) {
        const MutexLock lock(mutex_);
        const auto it = blocks_.find(static_cast<std::byte*>(memory));
        if (it == blocks_.end()) return false;
        ::munmap(it->first, it->second.bytes);
        ::munmap(it->second.work, it->second.bytes);
        ::close(it->second.fd);
        blocks_.erase(it);
        return true;
    }

    /// Translates to the address that the device uses; host memory keeps its own.
    template <class T>
    T* work(T* address) const {
        const auto* at = reinterpret_cast<const std::byte*>(address);
        const MutexLock lock(mutex_);
        const auto it = blockOf(at);
        if (it == blocks_.end()) return address;
        return reinterpret_cast<T*>(it->second.work + (at - it->first));
    }

    absl::StatusOr<cuda::Place> place(const void* memory, size_t bytes) const {
        const auto* at = static_cast<const std::byte*>(memory);
        const MutexLock lock(mutex_);
        const auto it = blockOf(at);
        if (it == blocks_.end() || at + bytes > it->first + it->second.bytes)
            return absl::InvalidArgumentError("not in memory that peers may map");
        cuda::Place place;
        place.process = static_cast<uint64_t>(::getpid());
        place.base = reinterpret_cast<uint64_t>(it->first);
        place.offset = static_cast<uint64_t>(at - it->first);
        const Block& block = it->second;
        std::memcpy(place.handle.data(), &block.fd, sizeof block.fd);
        std::memcpy(place.handle.data() + sizeof block.fd, &block.number, sizeof block.number);
        return place;
    }

    static absl::StatusOr<cuda::Machine::Block> mapPeer(const cuda::Place& place) {
        int fd = -1;
        std::memcpy(&fd, place.handle.data(), sizeof fd);
        const std::string path =
            "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(fd);
        const int mine = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        struct stat about {};
        if (mine < 0 || ::fstat(mine, &about) != 0)
            return absl::UnavailableError("the peer's block is gone");
        const auto bytes = static_cast<size_t>(about.st_size);
        std::byte* base = map(mine, bytes, PROT_READ);
        ::close(mine);
        if (base == nullptr) return absl::UnavailableError("the peer's block cannot be mapped");
        return cuda::Machine::Block{base, bytes};
    }

  private:
    static constexpr size_t kPage = 4096;
    struct Block {
        std::byte* work = nullptr;
        size_t bytes = 0;
        int fd = -1;
        uint64_t number = 0;  ///< never that of a block before
    };
    using Blocks = std::map<std::byte*, Block>;  // by the address shown

    static std::byte* map(int fd, size_t bytes, int protection) {
        void* at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
        return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
    }
    Blocks::const_iterator blockOf(const std::byte* at) const
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        auto it = blocks_.upper_bound(const_cast<std::byte*>(at));
        if (it == blocks_.begin()) return blocks_.end();
        --it;
        return at < it->first + it->second.bytes ? it : blocks_.end();
    }

    mutable Mutex mutex_;
    Blocks blocks_ ABSL_GUARDED_BY(mutex_);
    uint64_t numbers_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bulkhead::testing
