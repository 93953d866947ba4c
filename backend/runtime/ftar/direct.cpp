// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "backend/runtime/ftar/slices.h"

namespace bulkhead::runtime {
namespace {

std::vector<size_t> everybody(const PeerMesh& mesh) {
    std::vector<size_t> members(mesh.size());
    std::iota(members.begin(), members.end(), size_t{0});
    return members;
}

/// Method kDirect: see there.
class Direct final : public AllReduce {
  public:
    explicit Direct(const AllReduceContext& work)
        : slices_(work, everybody(*work.mesh), work.mesh->size(), work.wire),
          piece_((slices_.inPlace() ? work.directBytes : work.roundBytes) /
                 (work.wire == WireType::kBfloat16 && !slices_.inPlace() ? sizeof(Bfloat16)
                                                                         : sizeof(float))) {}

    absl::Status run(const RoundTag& tag, std::span<const float> in,
                     std::span<float> out) override {
        for (size_t at = 0; at < in.size(); at += piece_) {
            const size_t n = std::min(piece_, in.size() - at);
            if (absl::Status s = slices_.reduceScatter(tag, in.subspan(at, n), out.subspan(at, n));
                !s.ok())
                return s;
            if (absl::Status s = slices_.allGather(tag, out.subspan(at, n)); !s.ok()) return s;
        }
        return absl::OkStatus();
    }

  private:
    Slices slices_;
    const size_t piece_;  // elements
};

}  // namespace

std::unique_ptr<AllReduce> makeDirect(const AllReduceContext& work) {
    return std::make_unique<Direct>(work);
}

}  // namespace bulkhead::runtime
