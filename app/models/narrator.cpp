// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/narrator.h"

#include <cstdio>
#include <ostream>
#include <string>

#include "backend/model/gpu_text.h"
#include "backend/model/units.h"

namespace bulkhead::ui {
namespace {

std::string line(const model::RunState& s) {
    char text[256];
    std::snprintf(text, sizeof text,
                  "step %-5llu loss %.3f  %6.0f tokens/s  %zu/%u replicas  effective %.1f %%",
                  static_cast<unsigned long long>(s.lastCommit->record.step), s.lastCommit->loss,
                  s.lastCommit->tokensPerSecond, s.lastCommit->record.contributors.size(),
                  s.spec.replicas, 100 * s.effectiveTime);
    return text;
}

}  // namespace

void Narrator::look(const model::RunState& state) {
    gpuTroubles(state);
    incidents(state);
    const auto now = std::chrono::steady_clock::now();
    if (!state.lastCommit || state.lastCommit->record.step == lastStep_ ||
        now - lastLine_ < std::chrono::seconds(1))
        return;
    lastStep_ = state.lastCommit->record.step;
    lastLine_ = now;
    out_ << line(state) << std::endl;
}

void Narrator::gpuTroubles(const model::RunState& state) {
    const auto& all = state.gpuTroubles;
    for (size_t i = 0; i < all.size(); ++i)
        if (all.total() - all.size() + i >= troubles_)
            out_ << model::gpuName(all[i].trouble) << ": " << model::troubleText(all[i].trouble)
                 << "; " << model::ranksText(all[i].trouble) << std::endl;
    troubles_ = all.total();
}

void Narrator::incidents(const model::RunState& state) {
    for (size_t i = 0; i < state.incidents.size(); ++i) {
        const model::IncidentView& incident = state.incidents[i];
        if (incident.incident > opened_) {
            opened_ = incident.incident;
            out_ << "incident #" << incident.incident << ": " << incident.title << std::endl;
        }
        if (incident.closedNs != 0 && incident.incident > closed_) {
            closed_ = incident.incident;
            out_ << "incident #" << incident.incident << ": survivors stood still "
                 << model::humanDuration(incident.survivorStallMs);
            if (incident.rejoinMs > 0)
                out_ << ", back after " << model::humanDuration(incident.rejoinMs);
            out_ << ", " << incident.outcome << std::endl;
        }
    }
}

}  // namespace bulkhead::ui
