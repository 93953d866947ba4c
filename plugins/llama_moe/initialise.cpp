// SPDX-License-Identifier: Apache-2.0
#include <xxhash.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/llama_moe/numbers.h"
#include "plugins/llama_moe/parameter_store.h"

namespace bulkhead::llama_moe {
namespace {

constexpr size_t kMostThreads = 8;
constexpr size_t kDrawnByOne = size_t{1} << 16;

/// Element `index` of the tensor whose stream is `key`: a bell curve of deviation one, the sum of
/// four even 16-bit draws (Irwin-Hall). Every operation is exact, so all machines agree; the tails
/// end at 3.5, which suits weights.
double bell(uint64_t key, uint64_t index) {
    const uint64_t bits = XXH3_64bits_withSeed(&index, sizeof(index), key);
    uint64_t sum = 0;
    for (int part = 0; part < 4; ++part) sum += (bits >> (16 * part)) & 0xffff;
    constexpr double kDeviation = 37837.2;  // of the sum: 65536 / sqrt(3)
    return (static_cast<double>(sum) - 2.0 * 65535.0) / kDeviation;
}

/// Elements [begin, end) of the tensor whose stream is `key`. With one processor a state of
/// gigabytes takes longer to draw than to fetch: a rank that begins uses some of the node's.
template <class T>
void fill(const Tensor& tensor, uint64_t key, size_t begin, size_t end, T* to) {
    if (tensor.kind == TensorKind::kGain) {
        std::fill_n(to, end - begin, T(1));
        return;
    }
    const auto draw = [&](size_t from, size_t until) {
        for (size_t i = from; i < until; ++i)
            to[i - begin] = static_cast<T>(tensor.initScale * bell(key, i));
    };
    const size_t count = end - begin;
    const size_t parts =
        std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1,
                           1 + std::min<size_t>(count / kDrawnByOne, kMostThreads - 1));
    std::vector<std::thread> others;
    for (size_t p = 1; p < parts; ++p)
        others.emplace_back(draw, begin + count * p / parts, begin + count * (p + 1) / parts);
    draw(begin, begin + count / parts);
    for (std::thread& other : others) other.join();
}

}  // namespace

template <class A>
absl::Status ParameterStore<A>::writeTensor(const Tensor& tensor, const std::string& name,
                                            uint64_t seed, size_t begin, size_t end, T* to) {
    if (tensor.kind != TensorKind::kGain && !(tensor.initScale > 0)) return absl::OkStatus();
    const uint64_t key = XXH3_64bits_withSeed(name.data(), name.size(), seed);
    for (size_t at = begin; at < end; at += piece_.capacity()) {
        const size_t count = std::min(piece_.capacity(), end - at);
        fill(tensor, key, at, at + count, piece_.data());
        math_->copy(to + at - begin, piece_.data(), count);
        BULKHEAD_RETURN_IF_ERROR(math_->finish());
    }
    return absl::OkStatus();
}

template <class A>
absl::Status ParameterStore<A>::initialise(uint64_t seed) {
    math_->zero(parameters(), stateCount());
    for (size_t u = 0; u < spec_->units.size(); ++u) {
        const Unit& unit = spec_->units[u];
        const UnitRegion& region = layout().units()[u];
        const size_t from = device().shard * region.slice;
        for (const Tensor& tensor : unit.dense) {
            const size_t begin = std::max(from, tensor.offset);
            const size_t end = std::min(from + region.slice, tensor.offset + tensor.count());
            if (begin >= end) continue;
            BULKHEAD_RETURN_IF_ERROR(writeTensor(tensor, unit.prefix() + tensor.name, seed,
                                                 begin - tensor.offset, end - tensor.offset,
                                                 parameters() + region.begin + begin - from));
        }
        for (const size_t e : region.experts)
            for (const Tensor& tensor : unit.expert)
                BULKHEAD_RETURN_IF_ERROR(writeTensor(
                    tensor, absl::StrCat(unit.prefix(), "moe.experts.", e, ".", tensor.name), seed,
                    0, tensor.count(), parameters() + region.expertAt[e] + tensor.offset));
    }
    touchedSinceChange_ = imageIsOld_ = true;
    forgetWholeUnits();
    return math_->finish();
}

BULKHEAD_FOR_NUMBERS(ParameterStore)

}  // namespace bulkhead::llama_moe
