// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "backend/runtime/ftar/algorithm.h"
#include "backend/runtime/ftar/reduction.h"

namespace bulkhead::runtime {

/// The range of slice `index` of `slices` in `count` elements: [first, second). Slices begin at
/// cache lines; the last ones may be short or empty.
std::pair<size_t, size_t> sliceOf(size_t index, size_t slices, size_t count);

/// The two halves of an all-reduce among some members of a mesh. The first `owners` of `members`
/// own one slice each. Everybody else in the mesh takes no part. With kBfloat16 inputs are rounded
/// before they are added and sums before they are given away, whether they travel or are read in
/// place. Threads: one at a time.
class Slices {
  public:
    /// `members` contain ourselves and stand in the order of addition, the same at all of them.
    Slices(const AllReduceContext& work, std::vector<size_t> members, size_t owners, WireType wire);

    /// out[i] = the sum of everybody's in[i], in the order of members, for i in our slice.
    absl::Status reduceScatter(const RoundTag& tag, std::span<const float> in,
                               std::span<float> out);
    /// Everybody's slice of `out`, from its owner to all.
    absl::Status allGather(const RoundTag& tag, std::span<float> out);

    /// Our own slice of `count` elements; empty when we own none.
    std::pair<size_t, size_t> own(size_t count) const;
    bool inPlace() const { return inPlace_; }

  private:
    bool narrow() const { return wire_ == WireType::kBfloat16 && !inPlace_; }
    std::span<const Bfloat16> narrowed(std::span<const float> from);
    absl::Status round(const RoundTag& tag);
    template <class T, class Add>
    absl::Status sum(std::vector<const T*> sources, std::span<float> out, Add add) const;
    absl::Status sumOwn(std::span<const float> in, std::span<float> out) const;

    const AllReduceContext& work_;
    const std::vector<size_t> members_;
    const size_t owners_;
    const WireType wire_;
    const bool inPlace_;
    size_t self_ = 0;  // index into members_
    std::vector<Rounds::Give> give_;
    std::vector<Rounds::Get> get_;
    std::vector<Bfloat16> narrowed_;  // our part in the wire format
};

}  // namespace bulkhead::runtime
