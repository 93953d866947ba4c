// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/slices.h"

#include <algorithm>

#include "backend/runtime/transport/fault_tolerance.h"

namespace bulkhead::runtime {
namespace {

constexpr size_t kSliceAlign = 32;       // elements: a cache line of either type, at least
constexpr size_t kSumPart = 256u << 10;  // elements: far less than the 10 ms an abort may take

}  // namespace

std::pair<size_t, size_t> sliceOf(size_t index, size_t slices, size_t count) {
    const size_t each = (count + slices - 1) / slices;
    const size_t width = (each + kSliceAlign - 1) / kSliceAlign * kSliceAlign;
    return {std::min(count, index * width), std::min(count, (index + 1) * width)};
}

Slices::Slices(const AllReduceContext& work, std::vector<size_t> members, size_t owners,
               WireType wire)
    : work_(work),
      members_(std::move(members)),
      owners_(owners),
      wire_(wire),
      inPlace_(work.inPlace(members_)),
      give_(work.mesh->size()),
      get_(work.mesh->size(), Rounds::Get{0, nullptr, true}) {
    while (members_[self_] != work_.mesh->self()) ++self_;
    for (const size_t m : members_) get_[m].apart = false;
}

std::pair<size_t, size_t> Slices::own(size_t count) const {
    return self_ < owners_ ? sliceOf(self_, owners_, count) : std::pair<size_t, size_t>{0, 0};
}

std::span<const Bfloat16> Slices::narrowed(std::span<const float> from) {
    if (narrowed_.size() < from.size()) narrowed_.resize(from.size());
    const std::span<Bfloat16> to = std::span(narrowed_).first(from.size());
    toBfloat16(from, to);
    return to;
}

absl::Status Slices::round(const RoundTag& tag) {
    return members_.size() == 1 ? absl::OkStatus() : work_.round(tag, give_, get_);
}

absl::Status Slices::reduceScatter(const RoundTag& tag, std::span<const float> in,
                                   std::span<float> out) {
    const std::span<const std::byte> whole =
        narrow() ? std::as_bytes(narrowed(in)) : std::as_bytes(in);
    const size_t width = narrow() ? sizeof(Bfloat16) : sizeof(float);
    const auto [mineBegin, mineEnd] = own(in.size());
    for (size_t k = 0; k < members_.size(); ++k) {
        const auto [begin, end] =
            k < owners_ ? sliceOf(k, owners_, in.size()) : std::pair<size_t, size_t>{0, 0};
        give_[members_[k]].bytes = whole.subspan(begin * width, (end - begin) * width);
        get_[members_[k]] = {(mineEnd - mineBegin) * width, nullptr, false};
    }
    if (absl::Status s = round(tag); !s.ok()) return s;
    return sumOwn(in, out);
}

absl::Status Slices::sumOwn(std::span<const float> in, std::span<float> out) const {
    const auto [begin, end] = own(in.size());
    const std::span<float> to = out.subspan(begin, end - begin);
    if (narrow()) {
        std::vector<const Bfloat16*> sources;
        for (const size_t m : members_)
            sources.push_back(m == work_.mesh->self()
                                  ? narrowed_.data() + begin
                                  : reinterpret_cast<const Bfloat16*>(work_.rounds->got(m).data()));
        return sum(std::move(sources), to,
                   [](std::span<const Bfloat16* const> from, float* at, size_t n) {
                       sumRounded(from, at, n);
                   });
    }
    std::vector<const float*> sources;
    for (const size_t m : members_)
        sources.push_back(m == work_.mesh->self()
                              ? in.data() + begin
                              : reinterpret_cast<const float*>(work_.rounds->got(m).data()));
    const bool rounded = wire_ == WireType::kBfloat16;
    return sum(std::move(sources), to,
               [rounded](std::span<const float* const> from, float* at, size_t n) {
                   rounded ? sumRounded(from, at, n) : sumInOrder(from, at, n);
               });
}

/// In parts, so that an abort ends a long sum too.
template <class T, class Add>
absl::Status Slices::sum(std::vector<const T*> sources, std::span<float> out, Add add) const {
    const size_t part = kFaultTolerant ? kSumPart : std::max<size_t>(1, out.size());
    for (size_t at = 0; at < out.size(); at += part) {
        if (kFaultTolerant && at > 0 && work_.abort->raised()) return work_.abort->why();
        const size_t n = std::min(part, out.size() - at);
        add(std::span<const T* const>(sources), out.data() + at, n);
        for (const T*& source : sources) source += n;
    }
    return absl::OkStatus();
}

absl::Status Slices::allGather(const RoundTag& tag, std::span<float> out) {
    const auto [mineBegin, mineEnd] = own(out.size());
    const std::span<const float> mine = out.subspan(mineBegin, mineEnd - mineBegin);
    const std::span<const std::byte> bytes =
        narrow() ? std::as_bytes(narrowed(mine)) : std::as_bytes(mine);
    for (size_t k = 0; k < members_.size(); ++k) {
        const auto [begin, end] =
            k < owners_ ? sliceOf(k, owners_, out.size()) : std::pair<size_t, size_t>{0, 0};
        give_[members_[k]].bytes = bytes;
        get_[members_[k]] = {(end - begin) * (narrow() ? sizeof(Bfloat16) : sizeof(float)),
                             narrow() ? nullptr : reinterpret_cast<std::byte*>(out.data() + begin),
                             false};
    }
    if (absl::Status s = round(tag); !s.ok() || !narrow()) return s;
    for (size_t k = 0; k < owners_; ++k) {
        if (k == self_) continue;
        const auto [begin, end] = sliceOf(k, owners_, out.size());
        fromBfloat16(
            {reinterpret_cast<const Bfloat16*>(work_.rounds->got(members_[k]).data()), end - begin},
            out.subspan(begin, end - begin));
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::runtime
