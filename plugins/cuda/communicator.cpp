// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/communicator.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::cuda {
namespace {

constexpr int kEagerLooks = 2000;  // before a wait begins to sleep
constexpr std::chrono::microseconds kNap{50};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::create(Options options,
                                                                   const ncclUniqueId& id) {
    const absl::StatusOr<const NcclLibrary*> nccl = ncclLibrary();
    if (!nccl.ok()) return nccl.status();
    std::unique_ptr<Communicator> made(new Communicator(std::move(options), *nccl));
    if (absl::Status s =
            fromCuda(cudaEventCreateWithFlags(&made->done_, cudaEventDisableTiming), "event");
        !s.ok())
        return s;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun = (*nccl)->commInitRankConfig(&made->comm_, made->options_.size, id,
                                                           made->options_.rank, &config);
    if (begun != ncclSuccess && begun != ncclInProgress)
        return made->end(absl::InternalError((*nccl)->getErrorString(begun)));
    absl::Status s = made->settle("connecting", [] { return true; });
    if (!s.ok()) return s;
    return made;
}

Communicator::~Communicator() {
    if (aborted_.load()) (void)end(absl::AbortedError("the group was aborted"));
    if (comm_ != nullptr) {
        // Orderly only when all ranks leave alike; a rank that is gone would be waited for.
        const ncclResult_t begun = nccl_->commFinalize(comm_);
        if (begun == ncclInProgress) (void)settle("leaving", [] { return true; });
        if (comm_ != nullptr) (void)nccl_->commDestroy(comm_);
    }
    if (done_ != nullptr) ignore(cudaEventDestroy(done_));
}

absl::Status Communicator::run(
    const char* what, cudaStream_t stream,
    const std::function<ncclResult_t(const NcclLibrary&, ncclComm_t)>& post) {
    if (!failed_.ok()) return failed_;
    if (aborted_.load(std::memory_order_acquire))
        return end(absl::AbortedError("the group was aborted"));
    const ncclResult_t posted = post(*nccl_, comm_);
    if (posted != ncclSuccess && posted != ncclInProgress)
        return end(absl::InternalError(nccl_->getErrorString(posted)));
    // Until NCCL has put its kernels on the stream there is nothing to wait for there.
    if (absl::Status s = settle(what, [] { return true; }); !s.ok()) return s;
    if (absl::Status s = fromCuda(cudaEventRecord(done_, stream), what); !s.ok()) return end(s);
    return settle(what, [this]() -> absl::StatusOr<bool> {
        const cudaError_t now = cudaEventQuery(done_);
        if (now == cudaErrorNotReady) return false;
        if (absl::Status s = fromCuda(now, "waiting for the GPU"); !s.ok()) return s;
        return true;
    });
}

/// Returns when NCCL has no call in progress and `done`.
absl::Status Communicator::settle(const char* what,
                                  const std::function<absl::StatusOr<bool>()>& done) {
    const auto end = std::chrono::steady_clock::now() + options_.timeout;
    for (int looks = 0;; ++looks) {
        ncclResult_t state = ncclSuccess;
        if (const ncclResult_t asked = nccl_->commGetAsyncError(comm_, &state);
            asked != ncclSuccess)
            state = asked;
        if (state != ncclSuccess && state != ncclInProgress)
            return this->end(absl::UnavailableError(absl::StrCat(
                what, ": ", nccl_->getErrorString(state), ": ", nccl_->getLastError(comm_))));
        if (state == ncclSuccess) {
            const absl::StatusOr<bool> is = done();
            if (!is.ok()) return this->end(is.status());
            if (*is) return absl::OkStatus();
        }
        if (aborted_.load(std::memory_order_acquire))
            return this->end(absl::AbortedError("the group was aborted"));
        if (std::chrono::steady_clock::now() > end)
            return this->end(absl::DeadlineExceededError(
                absl::StrCat(what, ": nobody moved for ", options_.timeout.count(), " ms")));
        if (options_.progress) options_.progress();
        if (looks > kEagerLooks) std::this_thread::sleep_for(kNap);
    }
}

/// Ends what runs on the GPU for this communicator; waits of peers end by their own watch.
absl::Status Communicator::end(absl::Status why) {
    if (comm_ != nullptr) (void)nccl_->commAbort(std::exchange(comm_, nullptr));
    failed_ = absl::Status(why.code(), absl::StrCat("group ", options_.name, ", rank ",
                                                    options_.rank, ": ", why.message()));
    return failed_;
}

}  // namespace bulkhead::cuda
