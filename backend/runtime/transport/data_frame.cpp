// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/data_frame.h"

// Inline, so that it is compiled for this machine's vectors as this file is; the sums are the same.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <tuple>

namespace bulkhead::runtime {
namespace {

/// The checksum is the last member of each.
template <class T>
uint64_t sumOf(const T& value) {
    return XXH3_64bits(&value, sizeof value - sizeof(uint64_t));
}

auto order(const MeshIdentity& identity) {
    return std::tie(identity.term, identity.epoch, identity.step, identity.attempt);
}

}  // namespace

void seal(PeerHello& hello) {
    hello.checksum = sumOf(hello);
}
void seal(HelloReply& reply) {
    reply.checksum = sumOf(reply);
}
void seal(FrameHeader& header) {
    header.headerSum = sumOf(header);
}

bool intact(const PeerHello& hello) {
    return hello.magic == kDataMagic && hello.version == kDataVersion &&
           hello.checksum == sumOf(hello);
}

bool intact(const HelloReply& reply) {
    return reply.magic == kDataMagic && reply.checksum == sumOf(reply);
}

bool intact(const FrameHeader& header) {
    return header.magic == kDataMagic && header.version == kDataVersion &&
           header.headerSum == sumOf(header);
}

HelloVerdict judge(const PeerHello& hello, const MeshIdentity& mine, bool toMe) {
    if (hello.identity.group != mine.group) return HelloVerdict::kOtherGroup;
    if (order(hello.identity) < order(mine)) return HelloVerdict::kOlder;
    if (order(mine) < order(hello.identity)) return HelloVerdict::kNotYet;
    if (hello.identity.token != mine.token) return HelloVerdict::kWrongToken;
    if (!toMe || hello.identity.members != mine.members) return HelloVerdict::kOtherGroup;
    return HelloVerdict::kAccepted;
}

uint64_t hashBytes(const void* data, size_t size) {
    return XXH3_64bits(data, size);
}

}  // namespace bulkhead::runtime
