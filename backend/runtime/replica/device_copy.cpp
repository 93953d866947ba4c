// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/device_copy.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

namespace bulkhead::runtime {
namespace {

/// A rank pins no more of the host's free memory than this part of it: eight may begin at once.
constexpr uint64_t kPartOfHost = 12;

/// Pinning more than there is would end other processes before it failed.
uint64_t availableMemory() {
    std::ifstream in("/proc/meminfo");
    std::string word;
    uint64_t kib = 0;
    while (in >> word)
        if (word == "MemAvailable:" && in >> kib) return kib << 10;
    return 0;
}

}  // namespace

absl::StatusOr<void*> OpenDevice::take(bulkhead_memory kind, uint64_t bytes,
                                       std::string_view what) const {
    void* memory = nullptr;
    if (absl::Status s = log->check(api->alloc(device, kind, bytes, &memory), what); !s.ok())
        return s;
    return memory;
}

absl::Status OpenDevice::copy(void* to, const void* from, size_t bytes,
                              std::string_view what) const {
    absl::Status s = log->check(api->copy(device, to, from, bytes, nullptr), what);
    return s.ok() ? wait(what) : s;
}

absl::Status OpenDevice::wait(std::string_view what) const {
    return log->check(api->stream_synchronize(device, nullptr), what);
}

/// Pinned memory for one state. It may outlive its DeviceCopy in the hands of a reader.
struct DeviceCopy::Room {
    std::span<std::byte> memory;
    std::atomic<bool> lent{false};

    static std::optional<StateBytes> lend(const std::shared_ptr<Room>& room, uint64_t bytes) {
        if (room == nullptr || bytes > room->memory.size() || room->lent.exchange(true))
            return std::nullopt;
        std::shared_ptr<void> loan(room->memory.data(), [room](void*) { room->lent = false; });
        return StateBytes(room->memory.first(bytes), std::move(loan));
    }
};

absl::StatusOr<std::unique_ptr<DeviceCopy>> DeviceCopy::create(const OpenDevice& device) {
    std::unique_ptr<DeviceCopy> copy(new DeviceCopy(device));
    if (absl::Status s = copy->prepare(); !s.ok()) return s;
    copy->thread_ = std::thread([raw = copy.get()] { raw->run(); });
    return copy;
}

absl::Status DeviceCopy::prepare() {
    for (Piece& piece : pieces_) {
        const auto memory = device_.take(BULKHEAD_MEMORY_HOST, kPieceBytes, "room for copies");
        if (!memory.ok()) return memory.status();
        piece.memory = *memory;
        if (absl::Status s = device_.log->check(
                device_.api->stream_create(device_.device, &piece.stream), "a stream for copies");
            !s.ok())
            return s;
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
    if (room_ != nullptr && !room_->lent.exchange(true))
        device_.api->free(device_.device, room_->memory.data());
    for (Piece& piece : pieces_) {
        if (piece.stream != nullptr) device_.api->stream_destroy(device_.device, piece.stream);
        device_.api->free(device_.device, piece.memory);
    }
}

void DeviceCopy::makeRoom(uint64_t bytes) {
    absl::StatusOr<void*> memory =
        bytes > availableMemory() / kPartOfHost
            ? absl::ResourceExhaustedError("the host has little memory to spare")
            : device_.take(BULKHEAD_MEMORY_HOST, bytes, "pinning");
    if (!memory.ok()) {
        spdlog::info("copies of the state, {} bytes, go piece by piece and may hold up a step: {}",
                     bytes, std::string(memory.status().message()));
        return;
    }
    room_ = std::make_shared<Room>();
    room_->memory = {static_cast<std::byte*>(*memory), bytes};
}

void DeviceCopy::begin(Order order) {
    queue({std::move(order), nullptr, 0});
}

void DeviceCopy::begin(std::span<const float> from, std::span<float> to, Done done) {
    begin({from.size_bytes(),
           [this, bytes = std::as_bytes(from).data()](uint64_t at, uint64_t count, void* piece,
                                                      bulkhead_stream* stream) {
               return device_.api->copy(device_.device, piece, bytes + at, count, stream);
           },
           [next = std::as_writable_bytes(to).data()](std::span<const std::byte> part) mutable {
               next = std::copy(part.begin(), part.end(), next);
           },
           std::move(done)});
}

void DeviceCopy::snapshot(uint64_t bytes, Put put, StateBytes* to, Done done) {
    std::optional<StateBytes> lent = Room::lend(room_, bytes);
    if (lent) {
        *to = *std::move(lent);
        return queue({{bytes, std::move(put), nullptr, std::move(done)}, to->data(), 0});
    }
    if (room_ != nullptr)
        spdlog::info("a copy of the state goes piece by piece: the one before is still in use");
    to->resize(bytes);
    begin({bytes, std::move(put),
           [next = to->data()](std::span<const std::byte> part) mutable {
               next = std::copy(part.begin(), part.end(), next);
           },
           std::move(done)});
}

StateBytes DeviceCopy::lend(uint64_t bytes) {
    if (std::optional<StateBytes> lent = Room::lend(room_, bytes)) return *std::move(lent);
    StateBytes own;
    own.resize(bytes);
    return own;
}

void DeviceCopy::queue(Ordered ordered) {
    {
        const MutexLock lock(mutex_);
        ordered.number = ++begun_;
        orders_.push_back(std::move(ordered));
    }
    changed_.notify_all();
}

void DeviceCopy::await() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ == begun_; });
}

void DeviceCopy::giveUp() {
    {
        const MutexLock lock(mutex_);
        givenUp_ = begun_;
    }
    await();
}

void DeviceCopy::run() {
    MutexLock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return stopping_ || !orders_.empty();
        });
        if (orders_.empty()) return;
        {
            const Ordered next = std::move(orders_.front());
            orders_.pop_front();
            lock.unlock();
            next.order.done(copy(next));
        }
        lock.lock();
        ++done_;
        changed_.notify_all();
    }
}

absl::Status DeviceCopy::copy(const Ordered& ordered) {
    const auto& [order, straight, number] = ordered;
    absl::Status s;
    size_t turn = 0;
    for (uint64_t at = 0; at < order.bytes && s.ok(); turn ^= 1) {
        Piece& piece = pieces_[turn];
        s = empty(piece, order);
        if (s.ok() && number <= givenUp_) s = absl::CancelledError("it was given up");
        if (!s.ok()) break;
        const size_t bytes = std::min<uint64_t>(kPieceBytes, order.bytes - at);
        auto* to = straight != nullptr ? straight + at : static_cast<std::byte*>(piece.memory);
        s = device_.log->check(order.put(at, bytes, to, piece.stream), "copy");
        if (s.ok()) piece.coming = {to, bytes};
        at += bytes;
    }
    // Pieces under way end in pinned memory, even after a failure of the rest.
    for (size_t i = 0; i < pieces_.size(); ++i, turn ^= 1) s.Update(empty(pieces_[turn], order));
    return s;
}

/// The piece's turn to be emptied: in the order in which they were filled.
absl::Status DeviceCopy::empty(Piece& piece, const Order& order) {
    const std::span<const std::byte> part = std::exchange(piece.coming, {});
    if (part.empty()) return absl::OkStatus();
    absl::Status s =
        device_.log->check(device_.api->stream_synchronize(device_.device, piece.stream), "copy");
    if (s.ok() && order.take != nullptr) order.take(part);
    return s;
}

}  // namespace bulkhead::runtime
