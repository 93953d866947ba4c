// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/runtime/transport/shm_segment.h"

/// What goes over a data-plane connection: a hello and its answer, then frames. Little-endian
/// structs without padding; every one carries a checksum over itself. Pure.
namespace bulkhead::runtime {

constexpr uint32_t kDataMagic = 0x41444b42;  // "BKDA"
constexpr uint8_t kDataVersion = 1;
/// Larger announcements are hostile.
constexpr uint32_t kMaxChunkBytes = 64u << 20;

struct PeerHello {
    uint32_t magic = kDataMagic;
    uint32_t version = kDataVersion;
    MeshIdentity identity;
    int32_t from = 0;  ///< the caller's id (its replica, or its rank in a group)
    int32_t to = 0;    ///< whom it believes to have reached
    uint32_t incarnation = 0;
    uint32_t connection = 0;  ///< its index among those of this pair
    uint64_t checksum = 0;
};
static_assert(sizeof(PeerHello) == 80);

enum class HelloVerdict : uint32_t {
    kAccepted = 0,
    kWrongToken = 1,
    kOtherGroup = 2,  ///< not a member, or another group listens here just now
    kOlder = 3,       ///< the listener is in a later exchange
    kNotYet = 4,      ///< the listener is in an earlier exchange
};

struct HelloReply {
    uint32_t magic = kDataMagic;
    HelloVerdict verdict = HelloVerdict::kAccepted;
    uint32_t incarnation = 0;
    uint32_t reserved = 0;
    uint64_t checksum = 0;
};
static_assert(sizeof(HelloReply) == 24);

enum class FrameKind : uint8_t { kData = 1, kAck = 2 };

struct FrameHeader {
    uint32_t magic = kDataMagic;
    uint8_t version = kDataVersion;
    FrameKind kind = FrameKind::kData;
    uint8_t more = 0;    ///< the sender needs another round
    uint8_t summed = 0;  ///< 1: `payloadSum` is there
    uint64_t term = 0;
    uint64_t epoch = 0;
    uint64_t step = 0;
    uint32_t incarnation = 0;  ///< of the sender
    uint32_t attempt = 0;
    uint32_t bucket = 0;
    uint32_t length = 0;    ///< of the payload that follows
    uint64_t sequence = 0;  ///< round of this connection
    uint64_t offset = 0;    ///< of the payload in the round's message
    uint64_t total = 0;     ///< bytes of the round's message
    uint64_t consumed = 0;  ///< data frames the sender has taken off this connection so far
    uint64_t payloadSum = 0;
    uint64_t headerSum = 0;
};
static_assert(sizeof(FrameHeader) == 96);

/// Fills in the checksum of a hello, reply or frame header.
void seal(PeerHello& hello);
void seal(HelloReply& reply);
void seal(FrameHeader& header);
/// Magic, version and checksum are right.
bool intact(const PeerHello& hello);
bool intact(const HelloReply& reply);
bool intact(const FrameHeader& header);

/// What a listener in exchange `mine` answers; `toMe`: the hello names us and a peer we expect.
HelloVerdict judge(const PeerHello& hello, const MeshIdentity& mine, bool toMe);

uint64_t hashBytes(const void* data, size_t size);

}  // namespace bulkhead::runtime
