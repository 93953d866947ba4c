// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/worker/device_copy.h"

#include <algorithm>
#include <utility>

namespace bulkhead::runtime {

absl::StatusOr<std::unique_ptr<DeviceCopy>> DeviceCopy::create(const Device& device) {
    std::unique_ptr<DeviceCopy> copy(new DeviceCopy(device));
    if (absl::Status s = copy->prepare(); !s.ok()) return s;
    copy->thread_ = std::thread([raw = copy.get()] { raw->run(); });
    return copy;
}

absl::Status DeviceCopy::prepare() {
    for (Piece& piece : pieces_) {
        absl::Status s = device_.log->check(
            device_.api->alloc(device_.device, BULKHEAD_MEMORY_HOST, kPieceBytes, &piece.memory),
            "room for copies");
        if (s.ok())
            s = device_.log->check(device_.api->stream_create(device_.device, &piece.stream),
                                   "a stream for copies");
        if (!s.ok()) return s;
    }
    return absl::OkStatus();
}

DeviceCopy::~DeviceCopy() {
    await();
    {
        const MutexLock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    for (Piece& piece : pieces_) {
        if (piece.stream != nullptr) device_.api->stream_destroy(device_.device, piece.stream);
        device_.api->free(device_.device, piece.memory);
    }
}

uint64_t DeviceCopy::begin(Order order) {
    uint64_t number = 0;
    {
        const MutexLock lock(mutex_);
        orders_.push_back(std::move(order));
        number = ++begun_;
    }
    changed_.notify_all();
    return number;
}

void DeviceCopy::await(uint64_t number) {
    MutexLock lock(mutex_);
    changed_.wait(
        lock, [this, number]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ >= number; });
}

void DeviceCopy::await() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ == begun_; });
}

void DeviceCopy::run() {
    MutexLock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return stopping_ || !orders_.empty();
        });
        if (orders_.empty()) return;
        {
            const Order order = std::move(orders_.front());
            orders_.pop_front();
            lock.unlock();
            order.done(copy(order));
        }
        lock.lock();
        ++done_;
        changed_.notify_all();
    }
}

absl::Status DeviceCopy::copy(const Order& order) {
    absl::Status s;
    size_t turn = 0;
    for (uint64_t at = 0; at < order.bytes && s.ok(); turn ^= 1) {
        Piece& piece = pieces_[turn];
        s = empty(piece, order);
        if (!s.ok()) break;
        piece.bytes = std::min<uint64_t>(kPieceBytes, order.bytes - at);
        s = device_.log->check(order.put(at, piece.bytes, piece.memory, piece.stream), "copy");
        if (!s.ok()) piece.bytes = 0;
        at += piece.bytes;
    }
    // Pieces under way end in pinned memory, even after a failure of the rest.
    for (size_t i = 0; i < pieces_.size(); ++i, turn ^= 1) s.Update(empty(pieces_[turn], order));
    return s;
}

/// The piece's turn to be emptied: in the order in which they were filled.
absl::Status DeviceCopy::empty(Piece& piece, const Order& order) {
    const size_t bytes = std::exchange(piece.bytes, 0);
    if (bytes == 0) return absl::OkStatus();
    absl::Status s =
        device_.log->check(device_.api->stream_synchronize(device_.device, piece.stream), "copy");
    if (s.ok()) order.take({static_cast<const std::byte*>(piece.memory), bytes});
    return s;
}

}  // namespace bulkhead::runtime
