// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/sample_deal.h"

#include <numeric>
#include <span>

#include "absl/strings/str_cat.h"

namespace bulkhead::protocol {
namespace {

using Shares = std::span<const uint32_t>;

/// Multiples of the golden ratio spread evenly, however few of them: a part of 1/4 gets a sample of
/// every four or so, not a quarter of the stream at one end.
uint32_t homeOf(uint64_t sample, Shares parts) {
    const uint64_t total = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
    const uint64_t point = (sample * 0x9e3779b97f4a7c15ull) >> 32;
    uint64_t left = (point * total) >> 32;
    uint32_t shard = 0;
    while (left >= parts[shard]) left -= parts[shard++];
    return shard;
}

uint32_t nextWithRoom(const std::vector<std::vector<Sample>>& dealt, uint64_t most, Shares parts) {
    uint32_t best = 0;
    for (uint32_t s = 0; s < dealt.size(); ++s) {
        if (dealt[s].size() >= most) continue;
        const bool full = dealt[best].size() >= most;
        const bool larger = parts[s] > parts[best];
        const bool emptier = parts[s] == parts[best] && dealt[s].size() < dealt[best].size();
        if (full || larger || emptier) best = s;
    }
    return best;
}

}  // namespace

std::vector<std::vector<Sample>> dealSamples(const std::vector<SampleRange>& ranges,
                                             uint32_t shards,
                                             const std::vector<uint32_t>& domainShare) {
    std::vector<std::vector<Sample>> dealt(shards);
    uint64_t samples = 0;
    for (const SampleRange& range : ranges) samples += range.end - range.begin;
    uint64_t at = 0;
    if (domainShare.empty()) {
        for (const SampleRange& range : ranges)
            for (uint64_t i = range.begin; i < range.end; ++i, ++at)
                dealt[at % shards].emplace_back(range.domain, i);
        return dealt;
    }
    const uint64_t most = (samples + shards - 1) / shards;
    std::vector<Sample> left;
    const auto partsOf = [&](uint32_t domain) {
        return Shares(domainShare).subspan(size_t{domain} * shards, shards);
    };
    for (const SampleRange& range : ranges)
        for (uint64_t i = range.begin; i < range.end; ++i) {
            auto& home = dealt[homeOf(i, partsOf(range.domain))];
            (home.size() < most ? home : left).emplace_back(range.domain, i);
        }
    for (const Sample& sample : left)
        dealt[nextWithRoom(dealt, most, partsOf(sample.first))].push_back(sample);
    return dealt;
}

absl::Status checkDomainShare(const std::vector<uint32_t>& domainShare, uint32_t domains,
                              uint32_t shards) {
    if (domainShare.empty()) return absl::OkStatus();
    if (domainShare.size() != size_t{domains} * shards)
        return absl::InvalidArgumentError(absl::StrCat("domain_share has ", domainShare.size(),
                                                       " entries; expected ", domains,
                                                       " domains x ", shards, " shards"));
    for (uint32_t d = 0; d < domains; ++d) {
        const Shares parts = Shares(domainShare).subspan(size_t{d} * shards, shards);
        const uint64_t total = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
        if (total == 0 || total > UINT32_MAX)
            return absl::InvalidArgumentError(absl::StrCat("domain_share gives domain ", d, " ",
                                                           total, " parts in all; expected 1 to ",
                                                           UINT32_MAX));
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::protocol
