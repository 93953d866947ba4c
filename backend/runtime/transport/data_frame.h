// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "backend/common/secret.h"
#include "backend/runtime/transport/shm_segment.h"

/// The bytes of a data-plane connection: a hello and its answer, by which both ends prove that
/// they know the group's secret, then frames under a key of this connection. Little-endian structs
/// without padding. Pure.
namespace bulkhead::runtime {

constexpr uint32_t kDataMagic = 0x41444b42;  // "BKDA"
constexpr uint8_t kDataVersion = 2;
/// Larger announcements are hostile.
constexpr uint32_t kMaxChunkBytes = 64u << 20;

/// It can be made by those alone who know the key.
struct FrameTag {
    uint64_t words[2] = {};
};

struct PeerHello {
    uint32_t magic = kDataMagic;
    uint32_t version = kDataVersion;
    MeshIdentity identity;  ///< `token` is 0: it is for shared memory
    int32_t from = 0;       ///< the caller's id (its replica, or its rank in a group)
    int32_t to = 0;         ///< the replica that it intends to reach
    uint32_t incarnation = 0;
    uint32_t connection = 0;  ///< its index among those of this pair
    uint64_t nonce[2] = {};   ///< drawn: no two connections have the same keys
    FrameTag proof;
};
static_assert(sizeof(PeerHello) == 104);

enum class HelloVerdict : uint32_t {
    kAccepted = 0,
    kUnproven = 1,    ///< the caller does not know the group's secret
    kOtherGroup = 2,  ///< not a member, or another group listens here just now
    kOlder = 3,       ///< the listener is in a later exchange
    kNotYet = 4,      ///< the listener is in an earlier exchange
};

struct HelloReply {
    uint32_t magic = kDataMagic;
    HelloVerdict verdict = HelloVerdict::kAccepted;
    uint32_t incarnation = 0;
    uint32_t reserved = 0;
    uint64_t nonce[2] = {};
    FrameTag proof;  ///< of the hello too
};
static_assert(sizeof(HelloReply) == 48);

enum class FrameKind : uint8_t { kData = 1, kAck = 2 };

enum class Protection : uint8_t {
    kNone = 0,       ///< of the payload: it may be changed on the way
    kReadable = 1,   ///< changes are noticed
    kEncrypted = 2,  ///< and nobody reads it
};

struct FrameHeader {
    uint32_t magic = kDataMagic;
    uint8_t version = kDataVersion;
    FrameKind kind = FrameKind::kData;
    uint8_t more = 0;                               ///< the sender needs another round
    Protection protection = Protection::kReadable;  ///< of the payload
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
    FrameTag payloadTag;
    FrameTag headerTag;  ///< of all before it; both are made by FrameSeal
};
static_assert(sizeof(FrameHeader) == 112);

/// Draw the nonce and fill in the proof of a hello, or of the reply to one.
void prove(PeerHello& hello, const Secret& secret);
void prove(HelloReply& reply, const PeerHello& hello, const Secret& secret);
/// It was made by somebody who knows the secret.
bool proven(const PeerHello& hello, const Secret& secret);
bool proven(const HelloReply& reply, const PeerHello& hello, const Secret& secret);
/// Magic and version are right.
bool readable(const PeerHello& hello);
bool readable(const HelloReply& reply);
bool readable(const FrameHeader& header);

/// Keys of the two directions of a connection that began with these two.
struct ConnectionKeys {
    Secret ofCaller;    ///< for what it sends
    Secret ofListener;  ///< for what it sends
};
ConnectionKeys connectionKeys(const PeerHello& hello, const HelloReply& reply,
                              const Secret& secret);

/// The answer of a listener in exchange `mine`; `toMe`: the hello names us and a peer we expect.
HelloVerdict judge(const PeerHello& hello, const MeshIdentity& mine, const Secret& secret,
                   bool toMe);

uint64_t hashBytes(const void* data, size_t size);

}  // namespace bulkhead::runtime
