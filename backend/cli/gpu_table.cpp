// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/gpu_table.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/cli/text.h"
#include "backend/model/gpu_text.h"

namespace bulkhead::cli {
namespace {

template <class T>
std::string figure(const std::optional<T>& value, const char* unit) {
    if (!value) return "-";
    return absl::StrFormat("%.0f%s", static_cast<double>(*value), unit);
}

std::string gigabytes(const std::optional<uint64_t>& bytes) {
    return bytes ? absl::StrFormat("%.1f", static_cast<double>(*bytes) / 1e9) : "-";
}

std::vector<std::string> row(const model::NodeView& node, const model::GpuSample& gpu) {
    return {node.node,
            absl::StrCat(gpu.gpu),
            gpu.name.empty() ? "-" : gpu.name,
            figure(gpu.busyPercent, " %"),
            gigabytes(gpu.memoryUsedBytes) + "/" + gigabytes(gpu.memoryTotalBytes) + " GB",
            figure(gpu.temperatureCelsius, " C"),
            figure(gpu.powerWatts, " W"),
            figure(gpu.clockMhz, " MHz"),
            figure(gpu.memoryClockMhz, " MHz"),
            figure(gpu.eccUncorrected, ""),
            figure(gpu.lastXid, "")};
}

}  // namespace

std::string gpusText(const model::RunState& state) {
    std::vector<std::vector<std::string>> rows{{"NODE", "GPU", "NAME", "BUSY", "MEMORY", "TEMP",
                                                "POWER", "CLOCK", "MEMORY CLOCK", "ECC", "XID"}};
    std::map<std::string, std::string> without;  // reason, nodes
    for (const model::NodeView& node : state.nodes) {
        if (!node.sample || node.sample->gpus.empty()) {
            std::string& nodes = without[model::whyNoGpus(node)];
            absl::StrAppend(&nodes, nodes.empty() ? "" : ", ", node.node);
            continue;
        }
        for (const model::GpuSample& gpu : node.sample->gpus) rows.push_back(row(node, gpu));
    }
    std::string out = rows.size() > 1 ? table(rows) : "";
    for (const auto& [why, nodes] : without)
        absl::StrAppend(&out, "no GPU on ", nodes, ": ", why, "\n");
    for (size_t i = 0; i < state.gpuTroubles.size(); ++i) {
        const model::GpuTroubleView& v = state.gpuTroubles[i];
        absl::StrAppend(&out, dateTime(v.timeNs), "  ", model::gpuName(v.trouble), ": ",
                        model::troubleText(v.trouble), "; ", model::ranksText(v.trouble), "\n");
    }
    return out;
}

}  // namespace bulkhead::cli
