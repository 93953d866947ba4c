// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/corpus.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

}  // namespace

uint64_t permute(uint64_t index, uint64_t size, uint64_t key) {
    const int half = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
    const uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = index >> half;
        uint64_t right = index & mask;
        for (uint64_t round = 0; round < 4; ++round) {
            const uint64_t next = left ^ (mix(right ^ mix(key + round)) & mask);
            left = right;
            right = next;
        }
        index = (left << half) | right;
    } while (index >= size);
    return index;
}

uint64_t passKey(uint64_t seed, uint32_t domain, uint64_t pass) {
    return mix(seed + 0x9e3779b97f4a7c15ull * (domain + 1)) ^ mix(~pass);
}

absl::StatusOr<std::unique_ptr<Corpus>> Corpus::load(const std::vector<model::DomainSpec>& domains,
                                                     uint32_t sequenceLength, uint64_t seed) {
    if (domains.empty())
        return absl::InvalidArgumentError(
            "the job names no domain of training text; add [[domains]]");
    std::unique_ptr<Corpus> corpus(new Corpus);
    corpus->seed_ = seed;
    corpus->sequenceLength_ = sequenceLength;
    for (const model::DomainSpec& spec : domains) {
        Domain domain;
        domain.name = spec.name;
        absl::StatusOr<model::DomainText> read = model::readDomain(spec);
        if (!read.ok()) return read.status();
        corpus->identity_.add(spec.name, *read);
        domain.text = std::move(read->text);
        std::move(read->leftOut.begin(), read->leftOut.end(), std::back_inserter(corpus->leftOut_));
        if (domain.text.size() <= sequenceLength)
            return absl::InvalidArgumentError(absl::StrCat(
                "domain \"", spec.name, "\" (", spec.paths.empty() ? "no path" : spec.paths[0],
                ") holds ", domain.text.size(), " bytes, one sample needs ", sequenceLength + 1,
                "; add text or shorten sequence_length"));
        domain.windows = (domain.text.size() - 1) / sequenceLength;
        corpus->domains_.push_back(std::move(domain));
    }
    return corpus;
}

Corpus::~Corpus() = default;

uint64_t Corpus::offsetOf(uint32_t domain, uint64_t index) const {
    const uint64_t windows = domains_[domain].windows;
    const uint64_t key = passKey(seed_, domain, index / windows);
    // Windows do not divide the text: each pass begins at another byte, so that no tail stays
    // unread.
    const uint64_t slack = (domains_[domain].text.size() - 1) % sequenceLength_;
    return key % (slack + 1) + permute(index % windows, windows, key) * sequenceLength_;
}

absl::StatusOr<Sample> Corpus::sample(uint32_t domain, uint64_t index) const {
    if (domain >= domains_.size())
        return absl::InvalidArgumentError(
            absl::StrCat("a lease names domain ", domain, " but the corpus has ", domains_.size()));
    const std::string_view text = domains_[domain].text;
    return Sample{domain, index, text.substr(offsetOf(domain, index), sequenceLength_ + 1)};
}

uint64_t microBatches(const std::vector<SampleRange>& ranges, uint32_t shards,
                      uint32_t microBatch) {
    uint64_t samples = 0;
    for (const SampleRange& range : ranges) samples += range.end - range.begin;
    const uint64_t perShard = (samples + shards - 1) / shards;
    return (perShard + microBatch - 1) / microBatch;
}

}  // namespace bulkhead::runtime
