// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/types.h"
#include "backend/model/domain_text.h"
#include "backend/model/job_spec.h"

/// Training text: domains of files read as bytes, and the one mapping from a sample's index to the
/// bytes it stands for. Every rank of a job must hold the same corpus; `identity()` proves it.
namespace bulkhead::runtime {

/// One sample: `bytes` has sequenceLength + 1 bytes; inputs are all but the last, targets all but
/// the first.
struct Sample {
    uint32_t domain = 0;
    uint64_t index = 0;
    std::string_view bytes;
};

/// Thread: immutable after `load`, any thread may read. Lifetime: samples point into the corpus.
class Corpus {
  public:
    /// Reads every domain (model::readDomain); what is left out is named in `leftOut()`. Errors
    /// name domain and path; a domain shorter than one sample is one too.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<Corpus>> load(
        const std::vector<model::DomainSpec>& domains, uint32_t sequenceLength, uint64_t seed);

    ~Corpus();
    Corpus(const Corpus&) = delete;
    Corpus& operator=(const Corpus&) = delete;

    /// The bytes of sample `index` of `domain`. Within one pass over a domain (`samplesPerPass`
    /// consecutive indices from a multiple of it) every window comes once, in an order drawn from
    /// the seed and the pass. InvalidArgument for an unknown domain.
    [[nodiscard]] absl::StatusOr<Sample> sample(uint32_t domain, uint64_t index) const;

    /// Where in the domain's text window `index` begins, bytes.
    uint64_t offsetOf(uint32_t domain, uint64_t index) const;

    uint32_t domains() const { return static_cast<uint32_t>(domains_.size()); }
    uint64_t samplesPerPass(uint32_t domain) const { return domains_[domain].windows; }
    uint64_t bytes(uint32_t domain) const { return domains_[domain].text.size(); }
    uint32_t sequenceLength() const { return sequenceLength_; }

    /// Its hash depends on neither seed nor sequence length.
    const model::TextIdentity& identity() const { return identity_; }

    /// One line per file of a folder that is not trained on, with the reason.
    const std::vector<std::string>& leftOut() const { return leftOut_; }

  private:
    Corpus() = default;

    struct Domain {
        std::string name;
        std::string text;
        uint64_t windows = 0;
    };

    uint64_t seed_ = 0;
    uint32_t sequenceLength_ = 0;
    model::TextIdentity identity_;
    std::vector<Domain> domains_;
    std::vector<std::string> leftOut_;
};

/// A bijection of [0, size) chosen by `key`: where `index` goes. Constant memory: a four-round
/// Feistel network over the next even number of bits, walked until it lands inside.
uint64_t permute(uint64_t index, uint64_t size, uint64_t key);

/// The key of permute() for one pass over a domain.
uint64_t passKey(uint64_t seed, uint32_t domain, uint64_t pass);

/// Micro-batches every shard runs for this lease, the same number on all of them because the
/// collectives inside a replica need each: ceil(ceil(samples / shards) / microBatch). The last ones
/// of a shard may be short or empty.
uint64_t microBatches(const std::vector<SampleRange>& ranges, uint32_t shards, uint32_t microBatch);

}  // namespace bulkhead::runtime
