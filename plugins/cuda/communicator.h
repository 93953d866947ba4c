// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "plugins/cuda/device.h"
#include "plugins/cuda/nccl_library.h"

namespace bulkhead::cuda {

/// One NCCL communicator whose every wait ends: by an abort, by a rank's failure, or by the
/// timeout. It is made non-blocking, and only the thread that waits in it ends it, so NCCL is never
/// entered by two threads. After an error every call fails likewise. Threads: one at a time;
/// abort() from any.
class Communicator {
  public:
    struct Options {
        std::string name;
        int32_t rank = 0;
        int32_t size = 1;
        std::chrono::milliseconds timeout{0};  ///< for one call
        std::function<void()> progress;        ///< may be empty; called often inside waits
    };

    /// Collective: returns when all ranks are connected.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<Communicator>> create(
        Options options, const ncclUniqueId& id);
    ~Communicator();

    /// Calls `post`, which puts NCCL calls on `stream`, and waits until the stream has done them.
    [[nodiscard]] absl::Status run(
        const char* what, cudaStream_t stream,
        const std::function<ncclResult_t(const NcclLibrary&, ncclComm_t)>& post);

    void abort() { aborted_.store(true, std::memory_order_release); }

  private:
    Communicator(Options options, const NcclLibrary* nccl)
        : options_(std::move(options)), nccl_(nccl) {}
    absl::Status settle(const char* what, const std::function<absl::StatusOr<bool>()>& done);
    absl::Status end(absl::Status why);

    const Options options_;
    const NcclLibrary* const nccl_;
    ncclComm_t comm_ = nullptr;
    cudaEvent_t done_ = nullptr;
    std::atomic<bool> aborted_{false};
    absl::Status failed_;
};

}  // namespace bulkhead::cuda
