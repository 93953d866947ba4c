// SPDX-License-Identifier: Apache-2.0
#include "backend/model/gpu_text.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "backend/model/names.h"
#include "backend/model/rank_name.h"

namespace bulkhead::model {
namespace {

struct Meaning {
    uint64_t xid = 0;
    Severity severity = Severity::kError;
    std::string_view what;
    std::string_view remedy;
};

constexpr std::string_view kProgram = "look at the rank's output first, then at the driver's log";
constexpr std::string_view kReset = "cordon the node and reset the GPU";
constexpr std::string_view kReplace = "cordon the node and reset or replace the GPU";

constexpr std::array<Meaning, 17> kMeanings = {{
    {13, Severity::kWarning, "a kernel raised an exception", kProgram},
    {31, Severity::kWarning, "a kernel touched memory that is not mapped", kProgram},
    {43, Severity::kWarning, "the GPU stopped a program that did not go on", kProgram},
    {45, Severity::kWarning, "what ran there was taken down after an error before", kProgram},
    {48, Severity::kError, "a memory error of two bits, which cannot be corrected", kReset},
    {61, Severity::kError, "its microcontroller met a breakpoint or warns", kReset},
    {62, Severity::kError, "its microcontroller has halted", kReset},
    {63, Severity::kWarning, "a bad memory row is to be replaced by a spare one",
     "reset the GPU when the node is next drained"},
    {64, Severity::kError, "a bad memory row could not be replaced", kReplace},
    {69, Severity::kWarning, "a kernel used the GPU in a way that it does not know", kProgram},
    {74, Severity::kError, "an NVLink failed", "cordon the node and look at its links"},
    {79, Severity::kError, "the GPU has fallen off the bus", kReplace},
    {92, Severity::kWarning, "corrected memory errors are frequent",
     "watch it; drain the node when it has time"},
    {94, Severity::kWarning, "a memory error that only one program met",
     "that rank is lost; reset the GPU when the node is next drained"},
    {95, Severity::kError, "a memory error that any program there may have met", kReset},
    {119, Severity::kError, "its system processor does not answer", kReset},
    {120, Severity::kError, "its system processor failed", kReset},
}};

const Meaning* meaningOf(uint64_t xid) {
    const auto it = std::find_if(kMeanings.begin(), kMeanings.end(),
                                 [xid](const Meaning& m) { return m.xid == xid; });
    return it == kMeanings.end() ? nullptr : &*it;
}

std::string xidText(uint64_t xid) {
    const Meaning* meaning = meaningOf(xid);
    if (meaning == nullptr)
        return concat("Xid ", xid,
                      ": a critical error; the driver's list of Xid errors says which");
    return concat("Xid ", xid, ": ", meaning->what, "; ", meaning->remedy);
}

}  // namespace

Severity severityOf(const GpuTroubled& trouble) {
    const Meaning* meaning = trouble.xid ? meaningOf(*trouble.xid) : nullptr;
    return meaning == nullptr || trouble.eccUncorrected ? Severity::kError : meaning->severity;
}

std::string troubleText(const GpuTroubled& trouble) {
    if (trouble.xid) return xidText(*trouble.xid);
    const uint64_t errors = trouble.eccUncorrected.value_or(0);
    return concat(errors, errors == 1 ? " memory error" : " memory errors",
                  " that could not be corrected; ", kReset);
}

std::string gpuName(const GpuTroubled& trouble) {
    return concat("GPU ", trouble.gpu, trouble.name.empty() ? "" : " (", trouble.name,
                  trouble.name.empty() ? "" : ")", " of ", trouble.node);
}

std::string ranksText(const GpuTroubled& trouble) {
    if (trouble.ranks.empty()) return "no rank of this run computed there";
    std::vector<std::string> names;
    for (const RankId& rank : trouble.ranks) names.push_back(rankName(rank));
    return concat("computed there: ", joined(names));
}

std::string whyNoGpus(const NodeView& node) {
    if (node.state == NodeState::kLost) return "the node is lost";
    if (!node.sample) return "its agent has not said how it is";
    return node.sample->noGpus.empty() ? "its agent did not say why" : node.sample->noGpus;
}

}  // namespace bulkhead::model
