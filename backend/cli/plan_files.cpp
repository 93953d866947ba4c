// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/plan_files.h"

#include <filesystem>

#include "backend/common/file_system.h"
#include "backend/common/output_file.h"
#include "backend/planner/export/recording_lines.h"
#include "backend/planner/plan/plan_json.h"
#include "backend/planner/solve/drawn_routing.h"
#include "backend/planner/topology/topology_toml.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

constexpr uint64_t kDrawnTokens = 16'000;

}  // namespace

int refusePlan(const Cli& cli, const std::string& title, const absl::Status& status,
               const std::string& remedy) {
    const auto code =
        absl::IsNotFound(status) ? client::FailureCode::kNotFound : client::FailureCode::kInvalid;
    return fail(cli, {code, title, std::string(status.message()), remedy, false});
}

absl::StatusOr<Plan> readPlan(const std::string& path) {
    auto text = readAtMost(path, kMostPlanBytes);
    if (!text.ok()) return text.status();
    return parsePlan(*text, path);
}

absl::Status writePlan(const Plan& plan, const std::string& path) {
    return writeWhole(path, formatPlan(plan) + "\n");
}

absl::Status checkOut(const std::string& out) {
    return out.empty() ? absl::OkStatus() : checkWritable(out);
}

int refuseOut(const Cli& cli, const absl::Status& status) {
    return refusePlan(cli, "Cannot write the plan", status, "Choose another place with --out.");
}

absl::Status writeRecording(const Recording& recording, const std::string& path) {
    const auto file = OutputFile::create(path, true);
    if (!file.ok()) return file.status();
    OutputStream out(**file);
    absl::Status written = writeLines(recording, out);
    out.flush();
    if (!out.status().ok()) return out.status();
    return written.ok() ? (*file)->publish() : written;
}

client::Result<Recording> orDrawTokens(Recording recording, uint64_t seed) {
    if (recording.routing) return recording;
    auto routing = drawnRouting(recording, kDrawnTokens, seed);
    if (!routing.ok()) return planFailure("Cannot plan from these counts", routing.status());
    recording.routing = *std::move(routing);
    recording.tokensDrawn = true;
    recording.source += ", tokens drawn from its counts";
    return recording;
}

client::Result<Recording> readOrDrawTokens(const PlanOptions& options) {
    auto recording = readRouting(options.recording);
    if (!recording.ok()) return recording;
    return orDrawTokens(std::move(recording).value(), options.seed);
}

absl::StatusOr<Topology> chosenTopology(const PlanOptions& options) {
    if (options.topology.empty()) {
        if (options.nodes == 0)
            return absl::InvalidArgumentError("neither --nodes nor --topology was given");
        Topology made = flatTopology(options.nodes, options.gpusPerNode);
        if (auto status = checkTopology(made); !status.ok()) return status;
        return made;
    }
    auto preset = presetTopology(options.topology);
    const bool named = options.topology.find_first_of("./") == std::string::npos;
    if (preset.ok() || (named && !std::filesystem::exists(options.topology))) return preset;
    auto text = readAtMost(options.topology, kMostTopologyBytes);
    if (!text.ok()) return text.status();
    return parseTopology(*text, options.topology);
}

}  // namespace bulkhead::cli
