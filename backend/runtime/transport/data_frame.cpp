// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/data_frame.h"

#include <openssl/crypto.h>
#include <xxhash.h>

#include <algorithm>
#include <string>
#include <tuple>

namespace bulkhead::runtime {
namespace {

auto order(const MeshIdentity& identity) {
    return std::tie(identity.term, identity.epoch, identity.step, identity.attempt);
}

void draw(uint64_t (&nonce)[2]) {
    const Secret drawn = Secret::random();
    std::copy_n(drawn.words.begin(), 2, nonce);
}

template <class T>
std::string whole(const T& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

/// All before the proof, which is the last member of each.
template <class T>
std::string textOf(const T& value, const FrameTag& proof) {
    return whole(value).substr(0, sizeof value - sizeof proof);
}

FrameTag tagOf(const Secret& secret, std::string_view what, const std::string& text) {
    const Secret tag = secret.derive(std::string(what) + " " + text);
    return {{tag.words[0], tag.words[1]}};
}

bool same(const FrameTag& a, const FrameTag& b) {
    return ::CRYPTO_memcmp(a.words, b.words, sizeof a.words) == 0;
}

}  // namespace

void prove(PeerHello& hello, const Secret& secret) {
    draw(hello.nonce);
    hello.proof = tagOf(secret, "hello", textOf(hello, hello.proof));
}

void prove(HelloReply& reply, const PeerHello& hello, const Secret& secret) {
    draw(reply.nonce);
    reply.proof = tagOf(secret, "reply", whole(hello) + textOf(reply, reply.proof));
}

bool proven(const PeerHello& hello, const Secret& secret) {
    return same(hello.proof, tagOf(secret, "hello", textOf(hello, hello.proof)));
}

bool proven(const HelloReply& reply, const PeerHello& hello, const Secret& secret) {
    return same(reply.proof, tagOf(secret, "reply", whole(hello) + textOf(reply, reply.proof)));
}

bool readable(const PeerHello& hello) {
    return hello.magic == kDataMagic && hello.version == kDataVersion;
}

bool readable(const HelloReply& reply) {
    return reply.magic == kDataMagic;
}

bool readable(const FrameHeader& header) {
    return header.magic == kDataMagic && header.version == kDataVersion;
}

ConnectionKeys connectionKeys(const PeerHello& hello, const HelloReply& reply,
                              const Secret& secret) {
    const Secret both = secret.derive("connection " + whole(hello) + whole(reply));
    return {both.derive("caller"), both.derive("listener")};
}

HelloVerdict judge(const PeerHello& hello, const MeshIdentity& mine, const Secret& secret,
                   bool toMe) {
    if (hello.identity.group != mine.group) return HelloVerdict::kOtherGroup;
    if (order(hello.identity) < order(mine)) return HelloVerdict::kOlder;
    if (order(mine) < order(hello.identity)) return HelloVerdict::kNotYet;
    if (!proven(hello, secret)) return HelloVerdict::kUnproven;
    if (!toMe || hello.identity.members != mine.members) return HelloVerdict::kOtherGroup;
    return HelloVerdict::kAccepted;
}

uint64_t hashBytes(const void* data, size_t size) {
    return XXH3_64bits(data, size);
}

}  // namespace bulkhead::runtime
