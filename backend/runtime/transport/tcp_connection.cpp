// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/tcp_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/transport/address.h"
#include "backend/runtime/transport/fault_tolerance.h"

namespace bulkhead::runtime {
namespace {

absl::Status corrupt(const std::string& why) {
    return absl::DataLossError(absl::StrCat("data frame: ", why));
}

absl::Status broke(const char* what) {
    return absl::UnavailableError(absl::StrCat("connection broke: ", what));
}

}  // namespace

TcpConnection::TcpConnection(UniqueFd fd, const MeshIdentity& identity, uint32_t myIncarnation,
                             uint32_t peerIncarnation, const Secret& sending,
                             const Secret& receiving, const Options& options)
    : fd_(std::move(fd)),
      identity_(identity),
      myIncarnation_(myIncarnation),
      peerIncarnation_(peerIncarnation),
      options_(options),
      sealing_(sending),
      opening_(receiving) {
    tuneStream(fd_.get());
}

void TcpConnection::begin(const RoundTag& tag, bool more, std::span<const std::byte> out,
                          std::span<std::byte> in) {
    tag_ = tag;
    more_ = more;
    ++sequence_;
    out_ = out;
    outFramed_ = 0;
    allFramed_ = false;
    in_ = in;
    inAt_ = 0;
    received_ = false;
    peerMore_ = false;
}

absl::Status TcpConnection::advance(bool readable) {
    if (!fd_.valid()) return broke("closed");
    if (absl::Status s = write(); !s.ok()) return s;
    if (!readable && !parked_ && early_.empty()) return absl::OkStatus();
    if (absl::Status s = read(); !s.ok()) return s;
    return write();
}

short TcpConnection::wanted() const {
    short events = 0;
    const bool needsRead = !received_ || (!allFramed_ && creditBlocked());
    if (needsRead && !parked_) events |= POLLIN;
    const bool canWrite =
        framing_ || controlAt_ < control_.size() || (!allFramed_ && !creditBlocked());
    if (canWrite) events |= POLLOUT;
    return events;
}

void TcpConnection::breakOff() {
    if (fd_.valid()) resetOnClose(fd_.get());
    fd_.reset();
}

// ---- sending ---------------------------------------------------------------------------------

void TcpConnection::frameNext() {
    const size_t length = std::min(options_.chunkBytes, out_.size() - outFramed_);
    FrameHeader header;
    header.kind = FrameKind::kData;
    header.more = more_ ? 1 : 0;
    header.term = identity_.term;
    header.epoch = identity_.epoch;
    header.incarnation = myIncarnation_;
    header.step = tag_.step;
    header.attempt = tag_.attempt;
    header.bucket = tag_.bucket;
    header.length = static_cast<uint32_t>(length);
    header.sequence = sequence_;
    header.offset = outFramed_;
    header.total = out_.size();
    header.consumed = consumed_;
    header.protection = options_.protection;
    outPayload_ = sealing_.seal(header, out_.subspan(outFramed_, length));
    consumedTold_ = consumed_;
    outHeader_ = header;
    outHeaderAt_ = 0;
    outFramed_ += length;
    allFramed_ = outFramed_ == out_.size();
    framing_ = true;
    ++sentFrames_;
}

void TcpConnection::queueAckIfDue() {
    const uint64_t due = std::max(1u, options_.chunksInFlight / 2);
    if (framing_ || controlAt_ < control_.size() || consumed_ - consumedTold_ < due) return;
    FrameHeader ack;
    ack.kind = FrameKind::kAck;
    ack.term = identity_.term;
    ack.epoch = identity_.epoch;
    ack.incarnation = myIncarnation_;
    ack.step = tag_.step;
    ack.attempt = tag_.attempt;
    ack.sequence = sequence_;
    ack.consumed = consumed_;
    sealing_.seal(ack, {});
    consumedTold_ = consumed_;
    control_.resize(sizeof ack);
    std::memcpy(control_.data(), &ack, sizeof ack);
    controlAt_ = 0;
}

absl::Status TcpConnection::write() {
    while (true) {
        if (!framing_ && controlAt_ == control_.size() && !allFramed_ && !creditBlocked())
            frameNext();
        queueAckIfDue();
        std::array<iovec, 2> parts{};
        size_t count = 0;
        const auto add = [&](const std::byte* data, size_t size) {
            if (size > 0) parts[count++] = {const_cast<std::byte*>(data), size};
        };
        if (framing_) {
            add(reinterpret_cast<const std::byte*>(&outHeader_) + outHeaderAt_,
                sizeof outHeader_ - outHeaderAt_);
            add(outPayload_.data(), outPayload_.size());
        } else {
            add(control_.data() + controlAt_, control_.size() - controlAt_);
        }
        if (count == 0) {
            framing_ = false;
            return absl::OkStatus();
        }
        msghdr message{};
        message.msg_iov = parts.data();
        message.msg_iovlen = count;
        const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) return absl::OkStatus();
            return broke(std::strerror(errno));
        }
        auto left = static_cast<size_t>(n);
        moved_ += left;
        if (!framing_) {
            controlAt_ += left;
            continue;
        }
        const size_t head = std::min(left, sizeof outHeader_ - outHeaderAt_);
        outHeaderAt_ += head;
        outPayload_ = outPayload_.subspan(left - head);
        if (outHeaderAt_ == sizeof outHeader_ && outPayload_.empty()) framing_ = false;
    }
}

// ---- receiving -------------------------------------------------------------------------------

absl::Status TcpConnection::read() {
    if (parked_ && inHeader_.sequence == sequence_) {
        parked_ = false;
        if (absl::Status s = acceptData(); !s.ok()) return s;
    }
    // Reads on only while this round has use for it: the next round's bytes stay in the socket.
    while (!parked_ && (!received_ || (!allFramed_ && creditBlocked()))) {
        Parsed parsed = Parsed::kNeedMore;
        absl::Status s = inPayload_ ? readPayload(parsed) : readHeader(parsed);
        if (!s.ok()) return s;
        if (parsed == Parsed::kNeedMore) break;
    }
    return absl::OkStatus();
}

std::span<std::byte> TcpConnection::expected() const {
    if (received_) return {};
    return in_.subspan(inAt_, std::min(options_.chunkBytes, in_.size() - inAt_));
}

absl::StatusOr<size_t> TcpConnection::receive(std::span<std::byte> to, std::span<std::byte> ahead) {
    if (!early_.empty()) {
        const size_t n = std::min(to.size(), early_.size());
        std::memcpy(to.data(), early_.data(), n);
        early_.erase(early_.begin(), early_.begin() + static_cast<std::ptrdiff_t>(n));
        return n;
    }
    std::array<iovec, 2> parts{{{to.data(), to.size()}, {ahead.data(), ahead.size()}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    while (true) {
        const ssize_t n = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
        if (n > 0) {
            moved_ += static_cast<size_t>(n);
            return static_cast<size_t>(n);
        }
        if (n == 0) return broke("closed by the peer");
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return size_t{0};
        return broke(std::strerror(errno));
    }
}

absl::Status TcpConnection::readHeader(Parsed& parsed) {
    const std::span<std::byte> raw =
        std::as_writable_bytes(std::span(&inHeader_, 1)).subspan(inHeaderAt_);
    const std::span<std::byte> ahead = expected();
    const absl::StatusOr<size_t> n = receive(raw, ahead);
    if (!n.ok()) return n.status();
    if (*n == 0) return absl::OkStatus();
    parsed = Parsed::kGotSome;
    inHeaderAt_ += std::min(*n, raw.size());
    if (inHeaderAt_ < sizeof inHeader_) return absl::OkStatus();
    inHeaderAt_ = 0;
    if (absl::Status s = onHeader(parsed); !s.ok()) return s;
    std::span<std::byte> behind = ahead.first(*n - raw.size());
    if (behind.empty()) return absl::OkStatus();
    const bool itsPayload = inPayload_ && !dropping_;
    if (itsPayload) {
        inPayloadAt_ = std::min<size_t>(behind.size(), inHeader_.length);
        behind = behind.subspan(inPayloadAt_);
    }
    early_.assign(behind.begin(), behind.end());
    return itsPayload && inPayloadAt_ == inHeader_.length ? finishFrame() : absl::OkStatus();
}

bool TcpConnection::isStale(const FrameHeader& header) const {
    return std::tie(header.term, header.epoch, header.incarnation) <
               std::tie(identity_.term, identity_.epoch, peerIncarnation_) ||
           std::tie(header.step, header.attempt) < std::tie(tag_.step, tag_.attempt) ||
           header.sequence < sequence_;
}

bool TcpConnection::isOfThisRound(const FrameHeader& header) const {
    return header.sequence == sequence_ && header.term == identity_.term &&
           header.epoch == identity_.epoch && header.incarnation == peerIncarnation_ &&
           RoundTag{header.step, header.attempt, header.bucket} == tag_;
}

absl::Status TcpConnection::onHeader(Parsed& parsed) {
    const FrameHeader& header = inHeader_;
    if (!readable(header)) return corrupt("bad magic or version");
    if (!opening_.open(header)) return corrupt("the header was changed on the way");
    if (header.length > kMaxChunkBytes)
        return corrupt(absl::StrCat("announces ", header.length, " bytes"));
    if (header.kind == FrameKind::kAck) {
        if (header.length != 0) return corrupt("an acknowledgement with a payload");
        if (header.consumed > sentFrames_) return corrupt("acknowledges what was not sent");
        ackedFrames_ = std::max(ackedFrames_, header.consumed);
        return absl::OkStatus();
    }
    if (header.kind != FrameKind::kData) return corrupt("unknown kind");
    if (kFaultTolerant && isStale(header)) {
        ++stale_;
        dropping_ = true;
        inPayload_ = header.length > 0;
        inPayloadAt_ = 0;
        if (!inPayload_) dropping_ = false;
        return absl::OkStatus();
    }
    if (header.consumed > sentFrames_) return corrupt("acknowledges what was not sent");
    ackedFrames_ = std::max(ackedFrames_, header.consumed);
    if (header.sequence == sequence_ + 1) {
        parked_ = true;
        parsed = Parsed::kParked;
        return absl::OkStatus();
    }
    return acceptData();
}

absl::Status TcpConnection::acceptData() {
    const FrameHeader& header = inHeader_;
    if (kFaultTolerant && !isOfThisRound(header))
        return corrupt(absl::StrCat("is of step ", header.step, " attempt ", header.attempt,
                                    " bucket ", header.bucket, ", expected step ", tag_.step,
                                    " attempt ", tag_.attempt, " bucket ", tag_.bucket));
    if (header.total != in_.size())
        return corrupt(
            absl::StrCat("the peer sends ", header.total, " bytes, expected ", in_.size()));
    if (received_ || header.offset != inAt_ || header.length > in_.size() - inAt_ ||
        (header.length == 0 && !in_.empty()))
        return corrupt("chunks out of order");
    peerMore_ = header.more != 0;
    dropping_ = false;
    inPayloadAt_ = 0;
    inPayload_ = true;
    return header.length == 0 ? finishFrame() : absl::OkStatus();
}

absl::Status TcpConnection::readPayload(Parsed& parsed) {
    std::array<std::byte, 4096> scrap;
    const size_t left = inHeader_.length - inPayloadAt_;
    const absl::StatusOr<size_t> n =
        receive(dropping_ ? std::span(scrap).first(std::min(left, scrap.size()))
                          : in_.subspan(inAt_ + inPayloadAt_, left));
    if (!n.ok()) return n.status();
    if (*n == 0) return absl::OkStatus();
    parsed = Parsed::kGotSome;
    inPayloadAt_ += *n;
    return inPayloadAt_ == inHeader_.length ? finishFrame() : absl::OkStatus();
}

absl::Status TcpConnection::finishFrame() {
    inPayload_ = false;
    if (std::exchange(dropping_, false)) return absl::OkStatus();
    if (!opening_.open(inHeader_, in_.subspan(inAt_, inHeader_.length)))
        return corrupt("the payload was changed on the way");
    inAt_ += inHeader_.length;
    ++consumed_;
    if (inAt_ == in_.size()) received_ = true;
    return absl::OkStatus();
}

}  // namespace bulkhead::runtime
