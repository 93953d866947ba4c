// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace bulkhead::runtime {

/// The format of gradients between replicas; mirrors the job's `wire` key. Sums are float32 always.
enum class WireType {
    kFloat32,
    /// Half the bytes. Every input is rounded to bfloat16 (to nearest, ties to even), the rounded
    /// ones are added in float32 in the same order, the sum is rounded once more, at its owner too:
    /// the same bits everywhere, over any transport and for kDirect and kRing alike. With S the sum
    /// of the inputs' magnitudes the error of an element is at most S * (2^-7 + 2^-15 + n * 2^-23)
    /// for n contributors (two roundings of 2^-8, additions of 2^-24), and 2^-133 where a value is
    /// so small that bfloat16 has no full precision left. Magnitudes above 3.38e38 become infinite.
    kBfloat16,
};

/// The algorithm of the sum; mirrors the job's `all_reduce` key. Each gives all
/// participants the same bits, and the same bits again for the same membership.
enum class Algorithm {
    /// By size, number of peers and how they are reached; equal at all of them.
    kAuto,
    /// Everybody owns a slice, sums it out of all inputs in ascending order of replicas, and
    /// everybody takes the finished slices from their owners: two meetings. Over shared memory
    /// inputs and sums are read where they lie.
    kDirect,
    /// Over TCP to two neighbours only: pieces go up from the first replica to the last, each
    /// adding its own, and the finished ones from the last round to the first and on. The bits of
    /// kDirect. At most chunkBytes x chunksInFlight are on their way between two neighbours. A link
    /// carries n / (n - 1) times what it would in a ring whose slices start at different replicas;
    /// that is the price of one order of addition for all elements.
    kRing,
    /// Suits several replicas on each of several hosts: a host's replicas sum through memory, then
    /// one of each host exchanges its part with those of the others, so that what leaves a host is
    /// one gradient and not one for each replica. Sums in ascending order within a host, then over
    /// the hosts in order of their first replica. With kBfloat16 only what goes between hosts is
    /// rounded; the bound is the same. Elsewhere it is kDirect.
    kHierarchical,
};

}  // namespace bulkhead::runtime
