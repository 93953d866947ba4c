// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "backend/common/fields.h"
#include "backend/common/types.h"

/// The chain of hashes over a run's ledger (docs/protocol.md, "The ledger's chain"). The
/// coordinator makes each link once; the commit log and the run file both keep it, and whoever
/// holds one of them can compute it again.
namespace bulkhead {

/// A link covers this when a lineage opens.
struct LineageLink {
    uint64_t lineage = 0;
    uint64_t fromStep = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lineage", self.lineage);
        visit("from_step", self.fromStep);
    }
};

/// A link covers this when a step commits. A number that is not finite counts as the one quiet NaN,
/// whatever its sign and payload.
struct StepLink {
    CommitRecord record;
    double loss = 0;
    double gradNorm = 0;
    std::vector<ParityGroup> parity;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("record", self.record);
        visit("loss", self.loss);
        visit("grad_norm", self.gradNorm);
        visit("parity", self.parity);
    }
};

/// A link covers this when a range of samples is quarantined.
struct QuarantineLink {
    SampleRange range;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("range", self.range);
    }
};

/// Part of the binary form: append only.
using Chained = std::variant<LineageLink, StepLink, QuarantineLink, ParityDispute>;

/// SHA-256 over the 64 characters of `previous` (none for the first link) and then `what` in the
/// binary form of backend/common/codec.h, as 64 lower-case hexadecimal digits. Thread: any.
/// The form of what is hashed must never change, fields appended to the structs included: the test
/// LedgerChain.LinksStayAsTheyWere holds it.
[[nodiscard]] std::string chainLink(std::string_view previous, Chained what);

}  // namespace bulkhead
