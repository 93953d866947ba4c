// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "plugins/llama_moe/gpu/kernel.h"

/// XXH3-64 without a seed, of many pieces of 16 KiB at once, as bulkhead/state_hash.h wants them.
/// After the XXH3 section of xxHash's specification (doc/xxhash_spec.md): a piece is 16 blocks of
/// 16 stripes of 64 bytes, and each stripe goes into eight accumulators, of which a thread has two
/// that are neighbours, so that it reads 16 bytes of each stripe and needs nothing of other
/// threads.
namespace bulkhead::llama_moe::gpu {

constexpr uint32_t kHashedPiece = 16384;  ///< bytes
constexpr uint32_t kPairs = 4;            ///< of accumulators

struct Xxh3 {
    static constexpr uint64_t kPrime32_1 = 0x9E3779B1u, kPrime32_2 = 0x85EBCA77u,
                              kPrime32_3 = 0xC2B2AE3Du;
    static constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87u, kPrime64_2 = 0xC2B2AE3D27D4EB4Fu,
                              kPrime64_3 = 0x165667B19E3779F9u, kPrime64_4 = 0x85EBCA77C2B2AE63u,
                              kPrime64_5 = 0x27D4EB2F165667C5u, kPrimeMix = 0x165667919E3779F9u;
    static constexpr uint32_t kStripe = 64, kStripes = 16, kBlocks = 16;
    static constexpr uint32_t kMixAt = 128, kLastAt = 121, kMergeAt = 11;  ///< bytes of the secret

    /// The default secret, 192 bytes.
    static BULKHEAD_BODY uint64_t secretWord(uint32_t i) {
        static constexpr uint64_t kWords[24] = {
            0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u,
            0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u,
            0xcb00c391bb52283cu, 0xa32e531b8b65d088u, 0x4ef90da297486471u, 0xd8acdea946ef1938u,
            0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au, 0x647378d9c97e9fc8u,
            0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
            0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu};
        return kWords[i];
    }
    /// Eight bytes from any byte of it.
    static BULKHEAD_BODY uint64_t secret(uint32_t at) {
        const uint32_t bits = at % 8 * 8;
        const uint64_t low = secretWord(at / 8);
        return bits == 0 ? low : low >> bits | secretWord(at / 8 + 1) << (64 - bits);
    }
    static BULKHEAD_BODY uint64_t start(uint32_t accumulator) {
        static constexpr uint64_t kStarts[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                                kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
        return kStarts[accumulator];
    }
    static BULKHEAD_BODY uint64_t product(uint64_t keyed) {
        return (keyed & 0xFFFFFFFFu) * (keyed >> 32);
    }
    static BULKHEAD_BODY uint64_t mixed(uint64_t sum, uint64_t key) {
        return (sum ^ (sum >> 47) ^ key) * kPrime32_1;
    }
    /// Both halves of the product of 128 bits, one upon the other.
    static BULKHEAD_BODY uint64_t folded(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
        return a * b ^ __umul64hi(a, b);
#else
        const auto whole = static_cast<unsigned __int128>(a) * b;
        return static_cast<uint64_t>(whole) ^ static_cast<uint64_t>(whole >> 64);
#endif
    }
    static BULKHEAD_BODY uint64_t avalanche(uint64_t hash) {
        hash = (hash ^ hash >> 37) * kPrimeMix;
        return hash ^ hash >> 32;
    }
};

/// Contributions of each pair of accumulators to the piece's hash: sums[piece][pair].
struct PieceSums {
    const char* from;  ///< aligned to 16 bytes
    uint64_t* sums;
    uint64_t pieces;

    struct Two {
        uint64_t first, second;
    };
    static BULKHEAD_BODY Two load(const char* at) {
        Two two;
#ifdef __CUDA_ARCH__
        const ulonglong2 both = *reinterpret_cast<const ulonglong2*>(at);
        two = {both.x, both.y};
#else
        std::memcpy(&two, at, sizeof two);
#endif
        return two;
    }
    static BULKHEAD_BODY uint64_t sumOf(const char* piece, uint32_t lane) {
        uint64_t keys[Xxh3::kStripes + 1];
        for (uint32_t i = 0; i <= Xxh3::kStripes; ++i) keys[i] = Xxh3::secretWord(lane + i);
        const uint64_t mix = Xxh3::secret(Xxh3::kMixAt + 8 * lane),
                       mixNext = Xxh3::secret(Xxh3::kMixAt + 8 * lane + 8);
        uint64_t sum = Xxh3::start(lane), next = Xxh3::start(lane + 1);
        const char* at = piece + 8 * lane;
        for (uint32_t block = 0; block < Xxh3::kBlocks; ++block) {
            const bool last = block + 1 == Xxh3::kBlocks;
#ifdef __CUDACC__
#pragma unroll
#endif
            for (uint32_t stripe = 0; stripe < Xxh3::kStripes; ++stripe, at += Xxh3::kStripe) {
                const Two value = load(at);
                uint64_t key = keys[stripe], keyNext = keys[stripe + 1];
                if (last && stripe + 1 == Xxh3::kStripes) {
                    key = Xxh3::secret(Xxh3::kLastAt + 8 * lane);
                    keyNext = Xxh3::secret(Xxh3::kLastAt + 8 * lane + 8);
                }
                sum += value.second + Xxh3::product(value.first ^ key);
                next += value.first + Xxh3::product(value.second ^ keyNext);
            }
            if (last) break;
            sum = Xxh3::mixed(sum, mix);
            next = Xxh3::mixed(next, mixNext);
        }
        return Xxh3::folded(sum ^ Xxh3::secret(Xxh3::kMergeAt + 8 * lane),
                            next ^ Xxh3::secret(Xxh3::kMergeAt + 8 * lane + 8));
    }

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t step = uint64_t{block.blocks()} * block.threads();
        for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread();
             i < kPairs * pieces; i += step)
            sums[i] =
                sumOf(from + i / kPairs * kHashedPiece, 2 * static_cast<uint32_t>(i % kPairs));
    }
};

struct PieceHashes {
    const uint64_t* sums;
    uint64_t* hashes;
    uint64_t pieces;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t step = uint64_t{block.blocks()} * block.threads();
        for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread(); i < pieces;
             i += step) {
            const uint64_t* of = sums + i * kPairs;
            hashes[i] =
                Xxh3::avalanche(kHashedPiece * Xxh3::kPrime64_1 + of[0] + of[1] + of[2] + of[3]);
        }
    }
};

}  // namespace bulkhead::llama_moe::gpu
