// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/common/fields.h"

/// The words every room shares (docs/protocol.md, "Words"). Plain values, no behaviour.
namespace bulkhead {

/// One process: shard `shard` of replica `replica`. The leader of a replica is its shard 0.
struct RankId {
    int32_t replica = 0;
    int32_t shard = 0;
    auto operator<=>(const RankId&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("shard", self.shard);
    }
};

/// Samples [begin, end) of one domain's stream. A sample is one sequence of the job's length;
/// positions never wrap: sample k reads the corpus at a place derived from k.
struct SampleRange {
    uint32_t domain = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    auto operator<=>(const SampleRange&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("domain", self.domain);
        visit("begin", self.begin);
        visit("end", self.end);
    }
};

/// A figure of a user's own, under the user's name for it.
struct Scalar {
    static constexpr size_t kMost = 32;  ///< of a step
    std::string name;
    double value = 0;
    bool operator==(const Scalar&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("value", self.value);
    }
};

/// One contributor's part in a committed sum.
struct Contribution {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    std::vector<SampleRange> ranges;
    bool operator==(const Contribution&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica", self.replica);
        visit("incarnation", self.incarnation);
        visit("ranges", self.ranges);
    }
};

/// Traffic of the mixture layers to their experts, by the place of the tokens that sent it.
struct ExpertTraffic {
    std::vector<uint64_t> copies;  ///< by domain: one for each token, mixture and expert it chose
    std::vector<uint64_t> remote;  ///< by domain: of them, to an expert on another shard
    uint64_t bytes = 0;            ///< sent from shard to shard for them, forward and backward
    bool operator==(const ExpertTraffic&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("copies", self.copies);
        visit("remote", self.remote);
        visit("bytes", self.bytes);
    }
};

/// The experts that the tokens of one sample chose.
struct RoutedSample {
    uint32_t domain = 0;
    uint64_t sample = 0;            ///< its index in the domain's stream
    std::vector<uint32_t> experts;  ///< [token][mixture][choice] flattened
    bool operator==(const RoutedSample&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("domain", self.domain);
        visit("sample", self.sample);
        visit("experts", self.experts);
    }
};

/// Replicas that told the same hashes of their state after one step.
struct ParityGroup {
    std::vector<uint64_t> hashes;        ///< by shard
    std::vector<int32_t> replicas;       ///< ascending
    std::vector<uint32_t> incarnations;  ///< of `replicas`
    bool operator==(const ParityGroup&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("hashes", self.hashes);
        visit("replicas", self.replicas);
        visit("incarnations", self.incarnations);
    }
};

/// States after one step that should be equal and are not.
struct ParityDispute {
    uint64_t lineage = 0;
    uint64_t step = 0;     ///< the step after which the state was hashed
    uint64_t epoch = 0;    ///< of the exchange that told it, of step + 1
    uint32_t attempt = 0;  ///< of that exchange; 0: told by reports while the job waited
    uint64_t layout = 0;   ///< in which the states lie
    std::vector<ParityGroup> groups;
    std::vector<int32_t> expelled;  ///< the minority; empty on a tie, which replays decide
    bool operator==(const ParityDispute&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lineage", self.lineage);
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
        visit("layout", self.layout);
        visit("groups", self.groups);
        visit("expelled", self.expelled);
    }
};

/// Everything that decides what step `step` does to the model, fixed once by the coordinator and
/// durable before the first Commit leaves. Floats that enter arithmetic are carried as their bits,
/// so that every replica applies the same update (I1, I3). A reduced gradient g is applied as
/// g * gradScale (divisor and clipping in one factor) unless `skip`.
struct CommitRecord {
    uint64_t lineage = 0;
    uint64_t term = 0;
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 1;
    uint64_t layout = 0;
    std::vector<Contribution> contributors;
    uint64_t samples = 0;              ///< in the committed sum
    uint64_t tokens = 0;               ///< in the committed sum
    uint32_t divisorBits = 0;          ///< float: tokens in the sum under the default policy
    uint32_t learningRateBits = 0;     ///< float: schedule x LR factor
    uint32_t lrFactorBits = 0;         ///< float
    uint32_t gradScaleBits = 0;        ///< float: clip / divisor
    uint32_t biasCorrection1Bits = 0;  ///< float: 1 - beta1^updates
    uint32_t biasCorrection2Bits = 0;  ///< float: 1 - beta2^updates
    uint64_t updates = 0;  ///< optimizer updates applied including this one (skips excluded)
    bool skip = false;     ///< non-finite sum of finite inputs: state stays as it was
    bool operator==(const CommitRecord&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lineage", self.lineage);
        visit("term", self.term);
        visit("step", self.step);
        visit("epoch", self.epoch);
        visit("attempt", self.attempt);
        visit("layout", self.layout);
        visit("contributors", self.contributors);
        visit("samples", self.samples);
        visit("tokens", self.tokens);
        visit("divisor_bits", self.divisorBits);
        visit("learning_rate_bits", self.learningRateBits);
        visit("lr_factor_bits", self.lrFactorBits);
        visit("grad_scale_bits", self.gradScaleBits);
        visit("bias_correction1_bits", self.biasCorrection1Bits);
        visit("bias_correction2_bits", self.biasCorrection2Bits);
        visit("updates", self.updates);
        visit("skip", self.skip);
    }
};

}  // namespace bulkhead
