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

using Users = std::map<std::pair<std::string, uint32_t>, std::string>;  // by node and GPU

Users usersOf(const std::vector<model::RankView>& ranks) {
    Users users;
    for (const model::RankView& rank : ranks)
        for (const uint32_t gpu : rank.gpus) {
            std::string& names = users[{rank.node, gpu}];
            absl::StrAppend(&names, names.empty() ? "" : " ", model::rankName(rank.rank));
        }
    return users;
}

std::vector<std::string> row(const model::NodeView& node, const model::GpuSample& gpu,
                             const Users& users) {
    const auto ranks = users.find({node.node, gpu.gpu});
    return {node.node,
            absl::StrCat(gpu.gpu),
            ranks == users.end() ? "-" : ranks->second,
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
    std::vector<std::vector<std::string>> rows{{"NODE", "GPU", "RANKS", "NAME", "BUSY", "MEMORY",
                                                "TEMP", "POWER", "CLOCK", "MEMORY CLOCK", "ECC",
                                                "XID"}};
    const Users users = usersOf(state.ranks);
    std::map<std::string, std::string> without;  // reason, nodes
    for (const model::NodeView& node : state.nodes) {
        if (!node.sample || node.sample->gpus.empty()) {
            std::string& nodes = without[model::whyNoGpus(node)];
            absl::StrAppend(&nodes, nodes.empty() ? "" : ", ", node.node);
            continue;
        }
        for (const model::GpuSample& gpu : node.sample->gpus) rows.push_back(row(node, gpu, users));
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
