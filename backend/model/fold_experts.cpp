// SPDX-License-Identifier: Apache-2.0
#include "backend/model/fold.h"

namespace bulkhead::model::fold_detail {
namespace {

/// Cells of a shape; 0 when it is empty or larger than a state keeps.
size_t cellsOf(const ExpertLoads& e) {
    uint64_t cells = e.moeLayers;
    for (const uint32_t extent : {e.domains, e.experts})
        if (__builtin_mul_overflow(cells, static_cast<uint64_t>(extent), &cells)) return 0;
    return cells <= Limits::kExpertCells ? static_cast<size_t>(cells) : 0;
}

/// Busiest over mean expert of each layer, domains together; 1 for a layer without tokens.
std::vector<double> imbalance(const ExpertView& view, const std::vector<uint64_t>& loads) {
    std::vector<double> out;
    out.reserve(view.moeLayers);
    std::vector<double> perExpert(view.experts);
    const uint64_t* at = loads.data();
    for (uint32_t layer = 0; layer < view.moeLayers; ++layer) {
        std::fill(perExpert.begin(), perExpert.end(), 0.0);
        for (uint32_t domain = 0; domain < view.domains; ++domain)
            for (double& load : perExpert) load += static_cast<double>(*at++);
        double sum = 0;
        for (double load : perExpert) sum += load;
        const double busiest = *std::max_element(perExpert.begin(), perExpert.end());
        out.push_back(sum > 0 ? busiest * static_cast<double>(view.experts) / sum : 1.0);
    }
    return out;
}

void reshape(ExpertView& view, const ExpertLoads& e) {
    view.moeLayers = e.moeLayers;
    view.domains = e.domains;
    view.experts = e.experts;
    view.total.assign(e.counts.size(), 0);
    view.stretches.clear();
    view.history.clear();
}

void noteRecent(ExpertView& view, const ExpertLoads& e) {
    constexpr uint64_t kRecent = ExpertView::kStretch * ExpertView::kStretches;
    std::vector<ExpertStretch>& all = view.stretches;
    const uint64_t before = e.step > 0 ? e.step - 1 : 0;
    while (!all.empty() && all.back().from > before) all.pop_back();  // rolled back
    std::erase_if(all, [&](const auto& stretch) { return stretch.from + kRecent < e.step; });
    if (all.empty() || e.step - all.back().from > ExpertView::kStretch)
        all.push_back({before, std::vector<uint64_t>(e.counts.size())});
    for (size_t i = 0; i < e.counts.size(); ++i) addTo(all.back().loads[i], e.counts[i]);
}

}  // namespace

bool fold(RunState& s, int64_t at, const ExpertLoads& e) {
    const size_t cells = cellsOf(e);
    if (cells == 0 || e.counts.size() != cells) return false;
    ExpertView& view = s.experts;
    if (view.moeLayers != e.moeLayers || view.domains != e.domains || view.experts != e.experts)
        reshape(view, e);
    noteRecent(view, e);
    view.step = e.step;
    view.timeNs = at;
    view.latest = e.counts;
    for (size_t i = 0; i < cells; ++i) addTo(view.total[i], e.counts[i]);
    const std::vector<double> layers = imbalance(view, view.recent());
    double worst = 1;
    double sum = 0;
    for (const double layer : layers) {
        worst = std::max(worst, layer);
        sum += layer;
    }
    view.history.push({e.step, worst, sum / static_cast<double>(layers.size())});
    return true;
}

}  // namespace bulkhead::model::fold_detail
