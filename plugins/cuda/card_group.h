// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bulkhead::cuda {

/// A group whose ranks all compute on one GPU, which NCCL refuses: what a rank sends lies in a
/// block of its own, which the others map by CUDA IPC and copy from. They meet in memory of the
/// host. It is made for proving jobs on one GPU, not for speed. Every wait ends, by an abort or the
/// timeout; after an error every call fails likewise. Threads: one at a time; abort() from any.
class CardGroup {
  public:
    struct Options {
        std::string name;
        int32_t rank = 0;
        int32_t size = 1;
        std::chrono::milliseconds timeout{0};  ///< for one meeting
        std::function<void()> progress;        ///< may be empty; called often inside waits
    };
    /// The memory in which a group meets, under a name that nobody can guess, by which the others
    /// find it until all have; it goes with this when they have not.
    class Page;
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<Page>> makePage();

    /// Rank 0 has made the page, the others know its name. Collective.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<CardGroup>> create(
        Options options, std::unique_ptr<Page> page);
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<Page>> findPage(const std::string& name);
    static const std::string& nameOf(const Page& page);
    static constexpr size_t kNameLength = 41;  ///< of every page

    ~CardGroup();
    CardGroup(const CardGroup&) = delete;
    CardGroup& operator=(const CardGroup&) = delete;

    /// Rank r copies what begins at `at[r]` of this rank's `bytes` bytes at `from`; we copy
    /// receive[r] bytes of each of theirs, which come packed by rank in `to`. Returns when the
    /// stream has done it and nobody reads `from` any more. Collective.
    [[nodiscard]] absl::Status swap(const char* what, const void* from, size_t bytes,
                                    const std::vector<size_t>& at, void* to,
                                    const std::vector<size_t>& receive, cudaStream_t stream);
    /// Returns when all ranks have called it.
    [[nodiscard]] absl::Status meet(const char* what) { return meet(what, options_.timeout); }

    void abort() { aborted_.store(true, std::memory_order_release); }

  private:
    struct Peer {
        uint64_t block = 0;  ///< the number of its block that is mapped; 0: none
        void* base = nullptr;
    };
    CardGroup(Options options, std::unique_ptr<Page> page);
    absl::Status meet(const char* what, std::chrono::milliseconds limit);
    absl::Status reserve(size_t bytes);
    absl::Status fetch(const std::vector<size_t>& receive, void* to, cudaStream_t stream);
    absl::Status map(size_t rank);
    absl::Status fail(const char* what, absl::Status why);

    const Options options_;
    const std::unique_ptr<Page> page_;
    void* block_ = nullptr;   ///< the memory that the others map
    void* before_ = nullptr;  ///< the one before it, which they may still map
    size_t room_ = 0;
    uint64_t blocks_ = 0;    ///< so many were made
    uint64_t meetings_ = 0;  ///< so many were asked for
    std::vector<Peer> peers_;
    std::atomic<bool> aborted_{false};
    absl::Status failed_;
};

}  // namespace bulkhead::cuda
