// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/worker/state_copy.h"

#include <algorithm>
#include <utility>

namespace bulkhead::runtime {

absl::StatusOr<std::unique_ptr<StateCopy>> StateCopy::create(const Source& source) {
    std::unique_ptr<StateCopy> copy(new StateCopy(source));
    if (absl::Status s = copy->prepare(); !s.ok()) return s;
    copy->thread_ = std::thread([raw = copy.get()] { raw->run(); });
    return copy;
}

absl::Status StateCopy::prepare() {
    const bulkhead_device_api& device = *source_.deviceApi;
    for (Piece& piece : pieces_) {
        absl::Status s = source_.log->check(
            device.alloc(source_.device, BULKHEAD_MEMORY_HOST, kPieceBytes, &piece.memory),
            "room for a snapshot");
        if (s.ok())
            s = source_.log->check(device.stream_create(source_.device, &piece.stream),
                                   "a snapshot's stream");
        if (!s.ok()) return s;
    }
    return absl::OkStatus();
}

StateCopy::~StateCopy() {
    await();
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    for (Piece& piece : pieces_) {
        if (piece.stream != nullptr)
            source_.deviceApi->stream_destroy(source_.device, piece.stream);
        source_.deviceApi->free(source_.device, piece.memory);
    }
}

void StateCopy::begin(uint64_t bytes, std::vector<std::byte>* to,
                      std::function<void(absl::Status)> done) {
    await();
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        job_ = Job{bytes, to, std::move(done)};
    }
    changed_.notify_all();
}

void StateCopy::await() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !job_; });
}

void StateCopy::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || job_; });
        if (!job_) return;
        const Job job = *job_;
        lock.unlock();
        job.done(copy(job));
        lock.lock();
        job_.reset();
        changed_.notify_all();
    }
}

absl::Status StateCopy::copy(const Job& job) {
    job.to->clear();
    job.to->reserve(job.bytes);
    absl::Status s;
    size_t turn = 0;
    for (uint64_t at = 0; at < job.bytes && s.ok(); turn ^= 1) {
        Piece& piece = pieces_[turn];
        s = take(piece, job.to);
        if (!s.ok()) break;
        piece.bytes = std::min<uint64_t>(kPieceBytes, job.bytes - at);
        s = source_.log->check(source_.api->export_state_on(source_.workload, at, piece.bytes,
                                                            piece.memory, piece.stream),
                               "snapshot");
        if (!s.ok()) piece.bytes = 0;
        at += piece.bytes;
    }
    // What is on its way ends in pinned memory, whatever became of the rest.
    for (size_t i = 0; i < pieces_.size(); ++i, turn ^= 1) s.Update(take(pieces_[turn], job.to));
    return s;
}

/// The piece's turn to be emptied: in the order in which they were filled.
absl::Status StateCopy::take(Piece& piece, std::vector<std::byte>* to) {
    const size_t bytes = std::exchange(piece.bytes, 0);
    if (bytes == 0) return absl::OkStatus();
    absl::Status s = source_.log->check(
        source_.deviceApi->stream_synchronize(source_.device, piece.stream), "snapshot");
    const auto* from = static_cast<const std::byte*>(piece.memory);
    if (s.ok()) to->insert(to->end(), from, from + bytes);
    return s;
}

}  // namespace bulkhead::runtime
