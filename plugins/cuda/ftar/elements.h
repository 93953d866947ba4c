// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "plugins/common/bfloat16.h"

/// Additions in float32, in a fixed order, the same bits on the GPU and on the CPU: nothing but
/// additions and integer arithmetic, no product that a compiler could fuse with a sum. Only the
/// sign and payload of a NaN are the processor's own.
namespace bulkhead::cuda {

constexpr uint32_t kMaxSources = 64;  ///< as many as an exchange has members

/// Sum of one chunk: to[i] = ((s0[i] + s1[i]) + s2[i]) + ... for i < count.
struct Sum {
    uint64_t to;        ///< address, aligned to its element
    uint64_t count;     ///< elements
    uint64_t narrow;    ///< bit s: source s holds bfloat16, else float32
    uint32_t sources;   ///< 1 to kMaxSources
    uint16_t narrowTo;  ///< 1: the sum is stored as bfloat16
    uint16_t rounded;   ///< 1: every source and the sum are rounded to bfloat16, however stored
    uint64_t from[kMaxSources];  ///< addresses, in the order of addition
};

namespace detail {

constexpr uint32_t kPiece = 4;        ///< elements a thread takes at a time, of any type
constexpr uint32_t kNarrowPiece = 8;  ///< likewise where there is nothing but bfloat16
constexpr uint32_t kSlot = 16;        ///< bytes of a piece at most

/// A thread has so much on its way while it adds: batches of one source each, in slots of its own.
/// An H100's memory answers so late that a multiprocessor needs some 90 KB on the way; no block has
/// more than 99 KB on some GPUs.
constexpr uint32_t kBatch = 2;                         ///< pieces
constexpr uint32_t kBatches = 6;                       ///< on their way
constexpr uint32_t kRing = kBatches * kBatch * kSlot;  ///< bytes of a thread

template <class T, uint32_t kSize>
struct alignas(kSize * sizeof(T)) Piece {
    T at[kSize];
};

/// All sources and the target begin where whole pieces can be moved.
BULKHEAD_BOTH inline bool aligned(const Sum& sum) {
    bool all = sum.to % kSlot == 0;
    for (uint32_t s = 0; s < sum.sources; ++s) all = all && sum.from[s] % kSlot == 0;
    return all;
}

BULKHEAD_BOTH inline bool narrowAt(const Sum& sum, uint32_t source) {
    return (sum.narrow >> source) & 1u;
}

/// A loop of its own knows beforehand what it adds; kAny asks of each source.
enum class Types {
    kWide,    ///< float32 that nothing rounds
    kNarrow,  ///< bfloat16
    kAny,
};

BULKHEAD_BOTH inline Types typesOf(const Sum& sum) {
    const uint64_t all = ~uint64_t{0} >> (kMaxSources - sum.sources);
    if (sum.narrowTo) return (sum.narrow & all) == all ? Types::kNarrow : Types::kAny;
    return (sum.narrow & all) == 0 && !sum.rounded ? Types::kWide : Types::kAny;
}

BULKHEAD_BOTH inline float rounding(float x, bool rounded) {
    return rounded ? widen(narrow(x)) : x;
}

BULKHEAD_BOTH inline float element(const Sum& sum, uint32_t source, uint64_t i) {
    if (narrowAt(sum, source)) return widen(reinterpret_cast<const Bf16*>(sum.from[source])[i]);
    return rounding(reinterpret_cast<const float*>(sum.from[source])[i], sum.rounded != 0);
}

BULKHEAD_BOTH inline void one(const Sum& sum, uint64_t i) {
    float total = element(sum, 0, i);
    for (uint32_t s = 1; s < sum.sources; ++s) total += element(sum, s, i);
    if (sum.narrowTo)
        reinterpret_cast<Bf16*>(sum.to)[i] = narrow(total);
    else
        reinterpret_cast<float*>(sum.to)[i] = rounding(total, sum.rounded != 0);
}

/// The sum of no sources: -0, because 0 + -0 is 0.
template <uint32_t kSize>
BULKHEAD_BOTH void clear(Piece<float, kSize>* total) {
    BULKHEAD_UNROLL
    for (uint32_t k = 0; k < kSize; ++k) total->at[k] = -0.0f;
}

template <uint32_t kSize>
BULKHEAD_BOTH void addPiece(const void* from, bool narrow, bool rounded,
                            Piece<float, kSize>* total) {
    if (narrow) {
        const auto in = *static_cast<const Piece<Bf16, kSize>*>(from);
        BULKHEAD_UNROLL
        for (uint32_t k = 0; k < kSize; ++k) total->at[k] += widen(in.at[k]);
    } else {
        const auto in = *static_cast<const Piece<float, kSize>*>(from);
        BULKHEAD_UNROLL
        for (uint32_t k = 0; k < kSize; ++k) total->at[k] += rounding(in.at[k], rounded);
    }
}

template <uint32_t kSize>
BULKHEAD_BOTH void store(const Sum& sum, uint64_t piece, bool narrowTo, bool rounded,
                         const Piece<float, kSize>& total) {
    if (narrowTo) {
        Piece<Bf16, kSize> out;
        BULKHEAD_UNROLL
        for (uint32_t k = 0; k < kSize; ++k) out.at[k] = narrow(total.at[k]);
        reinterpret_cast<Piece<Bf16, kSize>*>(sum.to)[piece] = out;
    } else {
        Piece<float, kSize> out;
        BULKHEAD_UNROLL
        for (uint32_t k = 0; k < kSize; ++k) out.at[k] = rounding(total.at[k], rounded);
        reinterpret_cast<Piece<float, kSize>*>(sum.to)[piece] = out;
    }
}

BULKHEAD_BOTH inline void onePiece(const Sum& sum, uint64_t piece) {
    Piece<float, kPiece> total;
    clear(&total);
    for (uint32_t s = 0; s < sum.sources; ++s) {
        const bool narrow = narrowAt(sum, s);
        const uint64_t bytes = kPiece * (narrow ? sizeof(Bf16) : sizeof(float));
        addPiece(reinterpret_cast<const char*>(sum.from[s]) + piece * bytes, narrow,
                 sum.rounded != 0, &total);
    }
    store(sum, piece, sum.narrowTo != 0, sum.rounded != 0, total);
}

/// One thread's way through a sum's pieces, which the threads of a block take in turn.
template <Types kTypes, class Block>
class Stream {
  public:
    static constexpr uint32_t kSize = kTypes == Types::kNarrow ? kNarrowPiece : kPiece;

    BULKHEAD_BOTH Stream(const Sum& sum, Block& block)
        : sum_(sum),
          block_(block),
          slots_(block.ring() + block.thread() * kSlot),
          sources_(sum.sources),
          pieces_(static_cast<uint32_t>(sum.count / kSize)),
          thread_(static_cast<uint32_t>(block.thread())),
          step_(static_cast<uint32_t>(block.threads())),
          ahead_(thread_) {}

    BULKHEAD_BOTH void run() {
        const bool narrowTo = kTypes == Types::kNarrow || (kTypes == Types::kAny && sum_.narrowTo);
        const bool rounded = kTypes == Types::kAny && sum_.rounded;
        BULKHEAD_ROLLED
        for (uint32_t batch = 0; batch < kBatches; ++batch) fetch(batch);
        uint32_t batch = 0;
        BULKHEAD_ROLLED
        for (uint32_t piece = thread_; piece < pieces_; piece += kBatch * step_) {
            Piece<float, kSize> total[kBatch];
            BULKHEAD_UNROLL
            for (uint32_t b = 0; b < kBatch; ++b) clear(&total[b]);
            BULKHEAD_ROLLED
            for (uint32_t s = 0; s < sources_; ++s) {
                block_.template await<kBatches - 1>();
                BULKHEAD_UNROLL
                for (uint32_t b = 0; b < kBatch; ++b)
                    addPiece(slot(batch, b), isNarrow(s), rounded, &total[b]);
                fetch(batch);
                batch = batch + 1 == kBatches ? 0 : batch + 1;
            }
            BULKHEAD_UNROLL
            for (uint32_t b = 0; b < kBatch; ++b)
                if (piece + b * step_ < pieces_)
                    store(sum_, piece + b * step_, narrowTo, rounded, total[b]);
        }
    }

  private:
    BULKHEAD_BOTH bool isNarrow(uint32_t source) const {
        return kTypes == Types::kNarrow || (kTypes == Types::kAny && narrowAt(sum_, source));
    }
    BULKHEAD_BOTH char* slot(uint32_t batch, uint32_t b) const {
        return slots_ + (batch * kBatch + b) * step_ * kSlot;
    }
    /// The next batch goes out; behind the last piece there is nothing in it.
    BULKHEAD_BOTH void fetch(uint32_t batch) {
        const auto* from = reinterpret_cast<const char*>(sum_.from[source_]);
        const bool half = kTypes == Types::kAny && isNarrow(source_);
        BULKHEAD_UNROLL
        for (uint32_t b = 0; b < kBatch; ++b) {
            const uint32_t piece = ahead_ + b * step_;
            if (piece >= pieces_) continue;
            if (half)
                block_.template fetch<kSlot / 2>(slot(batch, b), from + piece * (kSlot / 2));
            else
                block_.template fetch<kSlot>(slot(batch, b), from + piece * kSlot);
        }
        block_.sent();
        if (++source_ < sources_) return;
        source_ = 0;
        ahead_ += kBatch * step_;
    }

    const Sum& sum_;
    Block& block_;
    char* const slots_;
    const uint32_t sources_, pieces_, thread_, step_;
    uint32_t ahead_;       ///< the piece that is fetched next
    uint32_t source_ = 0;  ///< and of which source
};

/// Returns how many elements were whole pieces.
template <Types kTypes, class Block>
BULKHEAD_BOTH uint64_t stream(const Sum& sum, Block& block) {
    using Way = Stream<kTypes, Block>;
    Way(sum, block).run();
    return sum.count / Way::kSize * Way::kSize;
}

template <class Block>
BULKHEAD_BOTH uint64_t streamAligned(const Sum& sum, Block& block) {
    switch (typesOf(sum)) {
        case Types::kWide:
            return stream<Types::kWide>(sum, block);
        case Types::kNarrow:
            return stream<Types::kNarrow>(sum, block);
        case Types::kAny:
            return stream<Types::kAny>(sum, block);
    }
    return 0;
}

}  // namespace detail

/// The part of `sum` that thread `thread` of `threads` does; all of them together do the whole.
BULKHEAD_BOTH inline void add(const Sum& sum, uint64_t thread, uint64_t threads) {
    uint64_t whole = 0;
    if (detail::aligned(sum)) {
        const uint64_t pieces = sum.count / detail::kPiece;
        whole = pieces * detail::kPiece;
        for (uint64_t p = thread; p < pieces; p += threads) detail::onePiece(sum, p);
    }
    for (uint64_t i = whole + thread; i < sum.count; i += threads) detail::one(sum, i);
}

/// Likewise the part of a block's thread, of fewer than 2^32 bytes of a source. A Block has
/// thread(), threads() and ring(), memory of its own of detail::kRing bytes a thread, aligned to
/// 16. fetch<bytes>(to, from) copies 8 or 16 bytes into it, both addresses multiples of that, while
/// the thread goes on. What it fetched up to sent() is a batch; await<N>() waits for all of the
/// thread's batches but the last N. No thread looks at what another fetched.
template <class Block>
BULKHEAD_BOTH void add(const Sum& sum, Block& block) {
    const uint64_t whole = detail::aligned(sum) ? detail::streamAligned(sum, block) : 0;
    for (uint64_t i = whole + block.thread(); i < sum.count; i += block.threads())
        detail::one(sum, i);
}

}  // namespace bulkhead::cuda
