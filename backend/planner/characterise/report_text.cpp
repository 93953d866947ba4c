// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/characterise/report_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "backend/model/names.h"

namespace bulkhead::planner {
namespace {

using model::concat;

/// "3.52", or "-" where there is nothing to say.
std::string number(double value, int digits = 2) {
    if (std::isnan(value)) return "-";
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}

std::string percent(double share) {
    return number(share * 100, 1) + " %";
}

std::string padded(std::string text, size_t width, bool left = false) {
    if (text.size() >= width) return text;
    const std::string blanks(width - text.size(), ' ');
    return left ? text + blanks : blanks + text;
}

/// Rows of cells under each other; the first column to the left, numbers to the right.
std::string table(const std::vector<std::vector<std::string>>& rows) {
    std::vector<size_t> widths;
    for (const auto& row : rows)
        for (size_t c = 0; c < row.size(); ++c) {
            if (c >= widths.size()) widths.push_back(0);
            widths[c] = std::max(widths[c], row[c].size());
        }
    std::string out;
    for (const auto& row : rows) {
        std::string line;
        for (size_t c = 0; c < row.size(); ++c)
            line += (c == 0 ? "  " : "  ") + padded(row[c], widths[c], c == 0);
        out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
}

std::string head(const Characterisation& it) {
    const ModelShape& shape = it.shape;
    std::string out =
        concat("Routing of ", shape.name.empty() ? "a model" : shape.name, " (", it.source, ")\n");
    if (shape.experts == 0) return out;
    out += concat(shape.layers, " MoE layers x ", shape.experts, " experts",
                  shape.topK > 0 ? concat(", top ", shape.topK) : "",
                  it.tokens > 0 ? concat("; ", it.tokens, " tokens") : "",
                  it.requests > 0 ? concat(" of ", it.requests, " requests") : "", "\n");
    for (const std::string& note : it.notes) out += concat("  note: ", note, "\n");
    return out;
}

std::string loadPart(const Characterisation& it) {
    std::string out = "\nFinding 1: expert load is imbalanced, and not equally so in every layer\n";
    out += concat("  imbalance (max / mean of experts): ", number(it.imbalance),
                  " in the mean of layers, ", number(it.worstImbalance), " in the worst\n",
                  "  balancedness (mean / max): ", number(it.balancedness, 3), ", worst ",
                  number(it.worstBalancedness, 3), "\n  half of a layer's load lies on ",
                  number(it.expertsForHalf, 1), " of ", it.shape.experts, " experts\n");
    std::vector<LayerLoad> layers = it.layers;
    std::stable_sort(layers.begin(), layers.end(), [](const LayerLoad& a, const LayerLoad& b) {
        return a.imbalance > b.imbalance;
    });
    constexpr size_t kShown = 5;
    std::vector<std::vector<std::string>> rows{
        {"layer", "max/mean", "mean/max", "hottest", "for half"}};
    for (size_t i = 0; i < std::min(kShown, layers.size()); ++i)
        rows.push_back({concat(layers[i].layer), number(layers[i].imbalance),
                        number(layers[i].balancedness, 3), concat("expert ", layers[i].hottest),
                        concat(layers[i].expertsForHalf)});
    return out +
           concat("  the ", rows.size() - 1, " most imbalanced of ", layers.size(), " layers:\n") +
           table(rows);
}

std::string matrixText(const Characterisation& it, const std::vector<std::vector<double>>& cells) {
    std::vector<std::vector<std::string>> rows(1, {""});
    for (size_t i = 0; i < cells.size(); ++i) {
        rows[0].push_back(concat("#", i));
        std::vector<std::string>& row =
            rows.emplace_back(1, concat("#", i, " ", model::shortened(it.domains[i].name, 24)));
        for (const double cell : cells[i]) row.push_back(number(cell));
    }
    return table(rows);
}

std::string domainPart(const Characterisation& it) {
    std::string out = "\nFinding 2: which experts are popular depends on the domain\n";
    if (!it.domainMatrix)
        return out + concat("  the recording has ", it.domains.size() < 2 ? "no" : "one",
                            " domains to compare; label its parts to see this\n");
    std::vector<std::vector<std::string>> rows{
        {"domain", "requests", "tokens", "max/mean", "for half"}};
    for (const DomainLoad& domain : it.domains)
        rows.push_back({model::shortened(domain.name, 40),
                        domain.requests > 0 ? concat(domain.requests) : "-",
                        domain.tokens > 0 ? concat(domain.tokens) : "-", number(domain.imbalance),
                        number(domain.expertsForHalf, 1)});
    out += table(rows);
    const char* diagonal = it.domainMatrix->diagonalIsHalves
                               ? "diagonal: two halves of the domain, what sampling alone does"
                               : "only counts are known: the diagonal says nothing";
    out += concat("  cosine of popularity (1: the same), mean of layers; ", diagonal, "\n");
    out += matrixText(it, it.domainMatrix->cosine);
    out += "  Jensen-Shannon distance of popularity (0: the same, 1: no expert in common)\n";
    return out + matrixText(it, it.domainMatrix->distance);
}

std::string phasePart(const Characterisation& it) {
    std::string out = "\nFinding 3: decode uses the experts that prefill used\n";
    if (!it.phases) return out + "  the recording does not tell prefill and decode apart\n";
    const PhaseCorrelation& phases = *it.phases;
    if (!phases.isPrefillDecode)
        out += concat("  phases are not recorded together: ", phases.between,
                      " stand in, which is easier to predict than decode from prefill\n");
    out += concat("  correlation (Pearson, over experts) between ", phases.between, ":\n");
    out += concat("  ", number(phases.pooled), " of all requests together, mean of layers (",
                  number(*std::min_element(phases.byLayer.begin(), phases.byLayer.end())), " to ",
                  number(*std::max_element(phases.byLayer.begin(), phases.byLayer.end())), ")\n");
    if (phases.requests > 0)
        out += concat("  ", number(phases.perRequest), " of a request with itself, ",
                      number(phases.otherRequest), " with one half a recording away (",
                      phases.requests,
                      " requests): the difference is what a request's own beginning tells\n");
    return out;
}

std::string pairsText(const PairLoad& pairs, const char* title, const char* between) {
    std::string out =
        concat("\n", title, "\n  knowing one expert removes ", percent(pairs.information),
               " of the uncertainty about ", between, "; ", percent(pairs.lifted),
               " of pairs occur at least twice as often as by chance (", pairs.sampledTokens,
               " tokens looked at)\n");
    std::vector<std::vector<std::string>> rows{{"layer", "experts", "tokens", "times chance"}};
    for (const ExpertPair& pair : pairs.strongest)
        rows.push_back({concat(pair.layer), concat(pair.first, " and ", pair.second),
                        concat(pair.tokens), number(pair.lift, 1)});
    return rows.size() > 1 ? out + table(rows) : out;
}

std::string driftPart(const Characterisation& it) {
    if (it.drift.size() < 2) return "";
    std::string out =
        "\nDrift over the recording (cosine of popularity; requests stand in the order of the "
        "file, "
        "so a file sorted by domain shows domains)\n";
    std::vector<std::vector<std::string>> rows{{"stretch", "tokens", "to first", "to previous"}};
    for (const DriftWindow& window : it.drift)
        rows.push_back({window.label, window.tokens > 0 ? concat(window.tokens) : "-",
                        number(window.toFirst, 3), number(window.toPrevious, 3)});
    return out + table(rows);
}

}  // namespace

std::string reportText(const Characterisation& it) {
    std::string out = head(it);
    if (it.balanceSamples > 0)
        out += concat("\nBalancedness of ranks by the server's own log: ",
                      number(it.loggedBalancedness, 3), " in the mean of ", it.balanceSamples,
                      " samples, worst ", number(it.worstLoggedBalancedness, 3), "\n");
    if (it.layers.empty()) return out;
    out += loadPart(it) + domainPart(it) + phasePart(it);
    if (it.coactivation)
        out += pairsText(*it.coactivation, "Co-activation: experts that one layer uses together",
                         "another of the token's experts in the layer");
    if (it.affinity)
        out += pairsText(*it.affinity, "Affinity: experts of a layer and of the next one",
                         "an expert of the next layer");
    out += driftPart(it);
    return out +
           "\nThe three findings are those of arXiv 2604.23150. Its formulas are not public to us: "
           "all definitions above are our own.\n";
}

}  // namespace bulkhead::planner
