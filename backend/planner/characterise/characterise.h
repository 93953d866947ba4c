// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/common/fields.h"
#include "backend/planner/data/recording.h"

/// Statistics of a recording as numbers (toJson walks the fields); report_text.h renders them as
/// text. Thread: any.
namespace bulkhead::planner {

struct LayerLoad {
    uint32_t layer = 0;       ///< the model's own number where known
    double imbalance = 0;     ///< max / mean of experts
    double balancedness = 0;  ///< mean / max
    uint32_t hottest = 0;     ///< expert with the most tokens
    uint32_t expertsForHalf = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("layer", self.layer);
        visit("imbalance", self.imbalance);
        visit("balancedness", self.balancedness);
        visit("hottest", self.hottest);
        visit("experts_for_half", self.expertsForHalf);
    }
};

struct DomainLoad {
    std::string name;
    uint64_t requests = 0;  ///< 0 where only counts are known
    uint64_t tokens = 0;
    double imbalance = 0;       ///< mean over layers
    double expertsForHalf = 0;  ///< mean over layers
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("requests", self.requests);
        visit("tokens", self.tokens);
        visit("imbalance", self.imbalance);
        visit("experts_for_half", self.expertsForHalf);
    }
};

/// Row by row in the order of `domains`, means over layers. The diagonal compares two halves of one
/// domain (every second request): what sampling alone does; NaN for a domain of one request.
struct DomainMatrix {
    std::vector<std::vector<double>> cosine;
    std::vector<std::vector<double>> distance;  ///< Jensen-Shannon
    bool diagonalIsHalves = false;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("cosine", self.cosine);
        visit("distance", self.distance);
        visit("diagonal_is_halves", self.diagonalIsHalves);
    }
};

/// Expert counts of a request's beginning against those of its rest.
struct PhaseCorrelation {
    std::string between;  ///< "prefill and decode", or what stands in for it
    bool isPrefillDecode = false;
    uint64_t requests = 0;    ///< that have both
    double pooled = 0;        ///< Pearson over experts of all requests' counts, mean over layers
    double perRequest = 0;    ///< the same of each request's counts, mean over requests
    double otherRequest = 0;  ///< a beginning against the rest of one half a recording away
    std::vector<double> byLayer;  ///< of `pooled`
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("between", self.between);
        visit("is_prefill_decode", self.isPrefillDecode);
        visit("requests", self.requests);
        visit("pooled", self.pooled);
        visit("per_request", self.perRequest);
        visit("other_request", self.otherRequest);
        visit("by_layer", self.byLayer);
    }
};

/// Two experts a token uses together: in one layer, or in a layer and the next.
struct ExpertPair {
    uint32_t layer = 0;  ///< the model's own number, of `first`
    uint32_t first = 0, second = 0;
    uint64_t tokens = 0;
    double lift = 0;  ///< tokens by what independent choice with these popularities would give
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("layer", self.layer);
        visit("first", self.first);
        visit("second", self.second);
        visit("tokens", self.tokens);
        visit("lift", self.lift);
    }
};

struct PairLoad {
    double information =
        0;              ///< of the uncertainty about one expert, what knowing the other removes
    double lifted = 0;  ///< share of pairs that occur at least twice as often as by chance
    uint64_t sampledTokens = 0;
    std::vector<ExpertPair> strongest;  ///< by tokens above chance
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("information", self.information);
        visit("lifted", self.lifted);
        visit("sampled_tokens", self.sampledTokens);
        visit("strongest", self.strongest);
    }
};

struct DriftWindow {
    std::string label;
    uint64_t tokens = 0;
    double toFirst = 0;     ///< cosine of popularity to the first window's, mean over layers
    double toPrevious = 0;  ///< and to the one before
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("label", self.label);
        visit("tokens", self.tokens);
        visit("to_first", self.toFirst);
        visit("to_previous", self.toPrevious);
    }
};

struct Characterisation {
    std::string source;
    std::vector<std::string> notes;  ///< the import's
    ModelShape shape;
    uint64_t tokens = 0;    ///< 0 where counts do not tell (top-k not known)
    uint64_t requests = 0;  ///< 0 where only counts are known

    // Finding 1: load imbalance. Means and worst layer.
    double imbalance = 0, worstImbalance = 0;
    double balancedness = 0, worstBalancedness = 0;
    double expertsForHalf = 0;
    std::vector<LayerLoad> layers;

    // Finding 2: popularity by domain. Absent with fewer than two domains.
    std::vector<DomainLoad> domains;
    std::optional<DomainMatrix> domainMatrix;

    // Finding 3: prefill and decode. Absent where only counts of unknown phase are known.
    std::optional<PhaseCorrelation> phases;

    // Beside the paper's findings; of tokens only.
    std::optional<PairLoad> coactivation;  ///< inside a layer; absent with top-1
    std::optional<PairLoad> affinity;      ///< between a layer and the next; absent with one layer
    std::vector<DriftWindow> drift;        ///< in the order of the recording

    // Balancedness that the engine reported in the server's log.
    uint64_t balanceSamples = 0;
    double loggedBalancedness = 0, worstLoggedBalancedness = 0;

    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("source", self.source);
        visit("notes", self.notes);
        visit("shape", self.shape);
        visit("tokens", self.tokens);
        visit("requests", self.requests);
        visit("imbalance", self.imbalance);
        visit("worst_imbalance", self.worstImbalance);
        visit("balancedness", self.balancedness);
        visit("worst_balancedness", self.worstBalancedness);
        visit("experts_for_half", self.expertsForHalf);
        visit("layers", self.layers);
        visit("domains", self.domains);
        visit("domain_matrix", self.domainMatrix);
        visit("phases", self.phases);
        visit("coactivation", self.coactivation);
        visit("affinity", self.affinity);
        visit("drift", self.drift);
        visit("balance_samples", self.balanceSamples);
        visit("logged_balancedness", self.loggedBalancedness);
        visit("worst_logged_balancedness", self.worstLoggedBalancedness);
    }
};

struct CharacteriseOptions {
    double headFraction = 0.3;  ///< the beginning of a request where phases are not recorded
    uint32_t driftWindows = 10;
    uint64_t pairTokens = 100'000;  ///< at most so many, evenly spread, are looked at for pairs
    uint32_t strongestPairs = 8;
};

[[nodiscard]] Characterisation characterise(const Recording& recording,
                                            const CharacteriseOptions& options = {});

}  // namespace bulkhead::planner
