// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "backend/runtime/ftar/slices.h"

namespace bulkhead::runtime {
namespace {

/// Members by host, in order of a host's first member.
std::vector<std::vector<size_t>> hostsOf(const PeerMesh& mesh) {
    std::vector<std::vector<size_t>> hosts;
    const std::vector<MeshPeer>& peers = mesh.spec().peers;
    for (size_t i = 0; i < peers.size(); ++i) {
        const auto found = std::ranges::find_if(hosts, [&](const std::vector<size_t>& members) {
            return peers[members.front()].host == peers[i].host;
        });
        if (found == hosts.end())
            hosts.push_back({i});
        else
            found->push_back(i);
    }
    return hosts;
}

size_t smallest(const std::vector<std::vector<size_t>>& hosts) {
    size_t least = hosts.front().size();
    for (const auto& members : hosts) least = std::min(least, members.size());
    return least;
}

/// The j-th member of every host: they exchange lane j of what their hosts have summed.
std::vector<size_t> laneOf(const std::vector<std::vector<size_t>>& hosts, size_t j) {
    std::vector<size_t> members;
    for (const auto& host : hosts) members.push_back(host[j]);
    return members;
}

/// Method kHierarchical: see there. There are as many lanes as the smallest host has members, so
/// that every lane has one carrier on each host; further members bring inputs and take sums.
class Hierarchical final : public AllReduce {
  public:
    Hierarchical(const AllReduceContext& work, const std::vector<std::vector<size_t>>& hosts)
        : piece_(work.roundBytes / sizeof(float)) {
        const size_t lanes = smallest(hosts);
        for (const auto& host : hosts) {
            const auto me = std::ranges::find(host, work.mesh->self());
            if (me == host.end()) continue;
            local_.emplace(work, host, lanes, WireType::kFloat32);
            const auto j = static_cast<size_t>(me - host.begin());
            if (j >= lanes) continue;
            std::vector<size_t> members = laneOf(hosts, j);
            const size_t owners = members.size();
            lane_.emplace(work, std::move(members), owners, work.wire);
        }
    }

    absl::Status run(const RoundTag& tag, std::span<const float> in,
                     std::span<float> out) override {
        for (size_t at = 0; at < in.size(); at += piece_) {
            const size_t n = std::min(piece_, in.size() - at);
            if (absl::Status s = runPiece(tag, in.subspan(at, n), out.subspan(at, n)); !s.ok())
                return s;
        }
        return absl::OkStatus();
    }

  private:
    absl::Status runPiece(const RoundTag& tag, std::span<const float> in, std::span<float> out) {
        if (absl::Status s = local_->reduceScatter(tag, in, out); !s.ok()) return s;
        if (lane_) {
            const auto [begin, end] = local_->own(out.size());
            const std::span<float> lane = out.subspan(begin, end - begin);
            if (absl::Status s = lane_->reduceScatter(tag, lane, lane); !s.ok()) return s;
            if (absl::Status s = lane_->allGather(tag, lane); !s.ok()) return s;
        }
        return local_->allGather(tag, out);
    }

    const size_t piece_;  // elements
    std::optional<Slices> local_, lane_;
};

}  // namespace

std::unique_ptr<AllReduce> makeHierarchical(const AllReduceContext& work) {
    const std::vector<std::vector<size_t>> hosts = hostsOf(*work.mesh);
    if (work.mesh->spec().choice != PeerChoice::kAuto || hosts.size() == 1 ||
        hosts.size() == work.mesh->size())
        return nullptr;
    return std::make_unique<Hierarchical>(work, hosts);
}

}  // namespace bulkhead::runtime
