// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/rounds.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/transport/fault_tolerance.h"
#include "backend/runtime/transport/futex.h"
#include "backend/runtime/transport/stream_copy.h"

namespace bulkhead::runtime {
namespace {

/// Bounds how late a dead writer, a cut or a missed wake is noticed.
constexpr MonoNs kSlice = 20 * kMillisecond;
/// Before it sleeps a member looks so often and lets others run in between: to be woken costs more
/// than a small message takes. 64 KiB among 4 ranks on 2 cores: 0.12 ms, without 0.25.
constexpr int kLooks = 10;
constexpr size_t kAlign = 64;
constexpr size_t kCopyBytes = 1u << 20;

bool reached(uint32_t published, uint32_t sequence) {
    return static_cast<int32_t>(published - sequence) >= 0;
}

MeshFault faultOf(const absl::Status& status) {
    return absl::IsDataLoss(status) ? MeshFault::kCorrupt : MeshFault::kReset;
}

}  // namespace

Rounds::Rounds(PeerMesh& mesh, const MeshContext& context)
    : mesh_(mesh),
      context_(context),
      done_(mesh.size()),
      waited_(mesh.size()),
      active_(mesh.size()),
      movedSeen_(mesh.size()),
      got_(mesh.size()),
      staging_(mesh.size()),
      waits_(mesh.size()) {
    if (context_.faults != nullptr) resetsSeen_ = context_.faults->resets();
}

absl::Status Rounds::run(const RoundTag& tag, std::span<const Give> give, std::span<const Get> get,
                         MonoNs timeout, bool more) {
    if (!broken_.ok()) return broken_;
    mesh_.unlinkWhenAttached();
    anyMore_ = more;
    for (size_t i = 0; i < mesh_.size(); ++i) done_[i] = get[i].apart;
    waited_.assign(mesh_.size(), 0);
    broken_ = holdBack();
    if (broken_.ok()) broken_ = publish(tag, give, more);
    if (broken_.ok()) broken_ = beginTcp(tag, give, get, more);
    if (broken_.ok()) broken_ = await(tag, get, timeout);
    if (broken_.ok()) broken_ = holdBack();
    lastWait_ = 0;
    totals_.staleFrames = 0;
    for (size_t i = 0; i < mesh_.size(); ++i) {
        if (mesh_.tcp(i) != nullptr) totals_.staleFrames += mesh_.tcp(i)->staleFrames();
        lastWait_ = std::max(lastWait_, waited_[i]);
        waits_[i] += waited_[i];
    }
    return broken_;
}

absl::Status Rounds::accuse(size_t peer, MeshFault fault, const absl::Status& why) {
    failures_.push_back({peer, fault, std::string(why.message())});
    return absl::Status(why.code(), absl::StrCat("peer ", mesh_.spec().peers[peer].id, ": ",
                                                 std::string(why.message())));
}

/// An injected delay: what leaves and what comes are each late by as much.
absl::Status Rounds::holdBack() {
    if (!kFaultTolerant || context_.faults == nullptr) return absl::OkStatus();
    const MonoNs until = context_.clock->now() + context_.faults->currentDelay();
    while (context_.clock->now() < until || context_.isCut()) {
        if (context_.abort->raised()) return context_.abort->why();
        if (absl::Status s = checkResets(); !s.ok()) return s;
        blockWhileCut();
    }
    return absl::OkStatus();
}

void Rounds::blockWhileCut() {
    pollfd wait{context_.abort->fd(), POLLIN, 0};
    ::poll(&wait, 1, 2);
    if (context_.progress) context_.progress();
}

absl::Status Rounds::checkResets() {
    if (context_.faults == nullptr || context_.faults->resets() == resetsSeen_)
        return absl::OkStatus();
    resetsSeen_ = context_.faults->resets();
    absl::Status first;
    for (size_t i = 0; i < mesh_.size(); ++i) {
        if (mesh_.tcp(i) == nullptr) continue;
        mesh_.tcp(i)->breakOff();
        absl::Status s = accuse(i, MeshFault::kReset, absl::UnavailableError("reset by a fault"));
        if (first.ok()) first = std::move(s);
    }
    return first;
}

bool Rounds::sharesMemory() const {
    for (size_t i = 0; i < mesh_.size(); ++i)
        if (mesh_.view(i) != nullptr && !done_[i]) return true;
    return false;
}

absl::Status Rounds::publish(const RoundTag& tag, std::span<const Give> give, bool more) {
    if (!sharesMemory()) return absl::OkStatus();
    ShmSegment* segment = mesh_.segment();
    ++sequence_;
    ShmSlotHeader& header = segment->slotHeader(sequence_);
    header.step = tag.step;
    header.attempt = tag.attempt;
    header.bucket = tag.bucket;
    header.more = more ? 1 : 0;
    size_t used = 0;
    size_t shared = mesh_.size();  // a member that was given the same bytes before
    for (size_t i = 0; i < mesh_.size(); ++i) {
        if (mesh_.view(i) == nullptr || done_[i]) continue;
        const std::span<const std::byte> bytes = give[i].bytes;
        totals_.bytesSent += bytes.size();
        if (shared < i && give[shared].bytes.data() == bytes.data() &&
            give[shared].bytes.size() == bytes.size()) {
            header.pieces[i] = header.pieces[shared];
            continue;
        }
        shared = i;
        if (absl::Status s = place(bytes, used, header.pieces[i]); !s.ok()) return s;
    }
    segment->publish(sequence_);
    return absl::OkStatus();
}

/// The place where readers find `bytes`: in the heap they lie in, else in the slot, of which `used`
/// is taken.
absl::Status Rounds::place(std::span<const std::byte> bytes, size_t& used, ShmPiece& piece) {
    const SharedHeap* heap = mesh_.spec().heap;
    if (const auto at = heap == nullptr ? std::nullopt : heap->find(bytes)) {
        piece = {at->offset, bytes.size(), at->fd, at->block};
        return absl::OkStatus();
    }
    const std::span<std::byte> slot = mesh_.segment()->slot(sequence_);
    if (bytes.size() > slot.size() - used)
        return absl::InvalidArgumentError(absl::StrCat("a round of more than ", slot.size(),
                                                       " bytes does not fit into its slot"));
    if (!bytes.empty()) std::memcpy(slot.data() + used, bytes.data(), bytes.size());
    piece = {used, bytes.size(), -1, 0};
    used = std::min(slot.size(), (used + bytes.size() + kAlign - 1) / kAlign * kAlign);
    return absl::OkStatus();
}

absl::Status Rounds::beginTcp(const RoundTag& tag, std::span<const Give> give,
                              std::span<const Get> get, bool more) {
    const MonoNs now = context_.clock->now();
    for (size_t i = 0; i < mesh_.size(); ++i) {
        active_[i] = now;
        TcpPeer* peer = mesh_.tcp(i);
        if (peer == nullptr || done_[i]) continue;
        totals_.bytesSent += give[i].bytes.size();
        std::byte* to = get[i].to;
        if (to == nullptr) {
            if (staging_[i].size() < get[i].size) staging_[i].resize(get[i].size);
            to = staging_[i].data();
        }
        movedSeen_[i] = peer->moved();
        peer->begin(tag, more, give[i].bytes, {to, get[i].size});
        got_[i] = {to, get[i].size};
    }
    return absl::OkStatus();
}

absl::Status Rounds::await(const RoundTag& tag, std::span<const Get> get, MonoNs timeout) {
    while (true) {
        bool all = true;
        for (size_t i = 0; i < mesh_.size(); ++i) {
            if (!waitsFor(i)) continue;
            if (!context_.isCut())
                if (const absl::Status s = tryPeer(tag, i, get[i]); !s.ok()) {
                    // A peer that learned of the abort first may have left already: no fault of its
                    // own.
                    if (context_.abort->raised()) return context_.abort->why();
                    // A stream out of step cannot be mended; its other end shall know at once.
                    if (mesh_.tcp(i) != nullptr) mesh_.tcp(i)->breakOff();
                    return accuse(i, faultOf(s), s);
                }
            all = all && done_[i];
        }
        if (all) return absl::OkStatus();
        if constexpr (kFaultTolerant) {
            if (context_.abort->raised()) return context_.abort->why();
            if (absl::Status s = checkResets(); !s.ok()) return s;
            if (absl::Status s = checkLate(context_.clock->now(), timeout); !s.ok()) return s;
        }
        block();
    }
}

absl::Status Rounds::tryPeer(const RoundTag& tag, size_t peer, const Get& get) {
    if (mesh_.view(peer) != nullptr) {
        if (!reached(mesh_.view(peer)->published().load(std::memory_order_acquire), sequence_))
            return absl::OkStatus();
        if (absl::Status s = pullShared(tag, peer, get); !s.ok()) return s;
        if (context_.arrived) context_.arrived();
        done_[peer] = true;
    } else {
        TcpPeer& tcp = *mesh_.tcp(peer);
        if (absl::Status s = tcp.advance(); !s.ok()) return s;
        if (tcp.moved() != movedSeen_[peer]) {
            movedSeen_[peer] = tcp.moved();
            active_[peer] = context_.clock->now();
            if (context_.arrived) context_.arrived();
        }
        if (!tcp.done()) return absl::OkStatus();
        anyMore_ = anyMore_ || tcp.peerWantsMore();
        done_[peer] = true;
    }
    totals_.bytesReceived += get.size;
    if (context_.progress) context_.progress();
    return absl::OkStatus();
}

absl::Status Rounds::pullShared(const RoundTag& tag, size_t peer, const Get& get) {
    const ShmView& view = *mesh_.view(peer);
    const ShmSlotHeader header = view.slotHeader(sequence_);
    if (kFaultTolerant && RoundTag{header.step, header.attempt, header.bucket} != tag)
        return absl::DataLossError(absl::StrCat(
            "is at step ", header.step, " attempt ", header.attempt, " bucket ", header.bucket,
            ", expected step ", tag.step, " attempt ", tag.attempt, " bucket ", tag.bucket));
    const ShmPiece& piece = header.pieces[mesh_.self()];
    if (piece.length != get.size)
        return absl::DataLossError(
            absl::StrCat("gives ", piece.length, " bytes, expected ", get.size));
    const absl::StatusOr<std::span<const std::byte>> bytes = shared(peer, piece);
    if (!bytes.ok()) return bytes.status();
    anyMore_ = anyMore_ || header.more != 0;
    got_[peer] = *bytes;
    if (get.to == nullptr) return absl::OkStatus();
    got_[peer] = {get.to, get.size};
    return copyOut(*bytes, get.to);
}

absl::StatusOr<std::span<const std::byte>> Rounds::shared(size_t peer,
                                                          const ShmPiece& piece) const {
    const ShmView& view = *mesh_.view(peer);
    if (piece.fd < 0) return view.piece(sequence_, piece);
    if (context_.heaps == nullptr) return absl::DataLossError("gives from a heap nobody can read");
    return context_.heaps->at(view.pid(), view.heap(), {piece.fd, piece.block, piece.offset},
                              piece.length);
}

/// In parts, so that an abort ends a large copy too.
absl::Status Rounds::copyOut(std::span<const std::byte> from, std::byte* to) const {
    for (size_t at = 0; at < from.size(); at += kCopyBytes) {
        if (kFaultTolerant && at > 0 && context_.abort->raised()) return context_.abort->why();
        const size_t n = std::min(kCopyBytes, from.size() - at);
        if (from.size() >= kStreamFrom)
            streamCopy(to + at, from.data() + at, n);
        else
            std::memcpy(to + at, from.data() + at, n);
    }
    return absl::OkStatus();
}

absl::Status Rounds::checkLate(MonoNs now, MonoNs timeout) {
    absl::Status first;
    for (size_t i = 0; i < mesh_.size(); ++i) {
        if (!waitsFor(i) || now - active_[i] < timeout) continue;
        absl::Status s = accuse(i, MeshFault::kTimeout,
                                absl::DeadlineExceededError(absl::StrCat(
                                    "nothing came for ", timeout / kMillisecond, " ms")));
        if (first.ok()) first = std::move(s);
    }
    if (!first.ok()) return first;
    if (now - aliveChecked_ < kSlice) return absl::OkStatus();
    aliveChecked_ = now;
    for (size_t i = 0; i < mesh_.size(); ++i) {
        const ShmView* view = mesh_.view(i);
        if (view == nullptr || !waitsFor(i) || view->writerAlive()) continue;
        // It may have given its last round just before it went.
        if (reached(view->published().load(std::memory_order_acquire), sequence_)) continue;
        return accuse(i, MeshFault::kReset,
                      absl::UnavailableError("the process that writes its segment is gone"));
    }
    return absl::OkStatus();
}

void Rounds::block() {
    if (context_.isCut()) return blockWhileCut();
    std::vector<pollfd> waits;
    size_t shared = mesh_.size();
    for (size_t i = 0; i < mesh_.size(); ++i) {
        if (!waitsFor(i)) continue;
        if (const TcpPeer* peer = mesh_.tcp(i)) {
            peer->appendWaits(waits);
        } else if (shared == mesh_.size()) {
            shared = i;
        }
    }
    const MonoNs before = context_.clock->now();
    if (waits.empty()) {
        const std::atomic<uint32_t>& word = mesh_.view(shared)->published();
        const uint32_t seen = word.load(std::memory_order_acquire);
        if (!reached(seen, sequence_))
            futexWaitEither(word, seen, context_.abort->word(), 0, kSlice);
    } else {
        // One call cannot wait for sockets and memory both; a mixed group looks every millisecond.
        waits.push_back({context_.abort->fd(), POLLIN, 0});
        const int ms = shared < mesh_.size() ? 1 : static_cast<int>(kSlice / kMillisecond);
        int found = 0;
        for (int look = 0; look < kLooks && found == 0; ++look) {
            found = ::poll(waits.data(), waits.size(), 0);
            if (found == 0) ::sched_yield();
        }
        if (found == 0) ::poll(waits.data(), waits.size(), ms);
    }
    const MonoNs blocked = context_.clock->now() - before;
    std::span<const pollfd> polled = waits;
    for (size_t i = 0; i < mesh_.size(); ++i) {
        if (!waitsFor(i)) continue;
        TcpPeer* peer = mesh_.tcp(i);
        if (peer != nullptr) {
            peer->onPolled(polled.first(peer->connections()));
            polled = polled.subspan(peer->connections());
        }
        if (peer != nullptr || i == shared) waited_[i] += blocked;
    }
    if (context_.progress) context_.progress();
}

}  // namespace bulkhead::runtime
